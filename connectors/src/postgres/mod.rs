//! `Postgres` and `PostgresSink`: documents, turns and answers in the tables of a PostgreSQL server (13 or later).
//!
//! | node | module |
//! |---|---|
//! | `Postgres` among the corpora | [`corpus`]: the rows of a query are documents |
//! | `Postgres` among the sources | [`turns`]: the rows of a table are turns |
//! | `PostgresSink` | [`sink`]: answers become rows of a table |
//!
//! All three have the fields `url` and `password`:
//!
//! ```ron
//! PostgresSink(input: "final", url: "postgres://app@db:5432/chat", password: Some(Env("DB_PASSWORD")), table: "public.answers")
//! ```
//!
//! The URL is that of PostgreSQL's own programs: `postgres://USER@HOST:PORT/DATABASE?PARAMETER=VALUE`. It cannot contain a
//! password. With `sslmode=require` or `verify-full`, the connection is encrypted and the server's certificate must be valid
//! for its name, by the certificates in the PEM file `sslrootcert=/PATH`, or else by the system's, or those in the file that
//! the environment variable `SSL_CERT_FILE` names. With
//! `sslmode=prefer` (the default), the connection is encrypted if the server offers it, and its certificate is not
//! checked: this does not protect against someone who can alter what is sent. With `sslmode=disable`, it is not encrypted.
//!
//! The password is read again for each new connection. While the server is away, or refuses the login, sources wait and
//! try again, and sinks keep their answers; with `--once`, a source gives up after 30 seconds.
//!
//! Names of tables, columns, channels, publications and slots are checked and quoted: upper and lower case count, and a
//! name with other characters than letters, digits, `_` and `$` is refused.

mod connect;
pub mod corpus;
mod names;
pub(crate) mod pgoutput;
pub mod sink;
mod slot;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
pub mod turns;
