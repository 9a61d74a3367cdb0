//! Finds and loads pdfium, the PDF library of Chromium, once for the process.

use std::path::PathBuf;
use std::sync::OnceLock;

use parking_lot::Mutex;
use pdfium_render::prelude::Pdfium;

use crate::ReadError;

/// The variable of the environment that names the library's file.
pub(crate) const VARIABLE: &str = "PDFIUM_PATH";
/// Where the library is, below the directory of models.
const PLACE: &str = "models/pdfium";

/// The library. It is used by one thread at a time.
struct Library(Pdfium);

// SAFETY: what is reached through the library is used only under the lock of `with`.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Calls a function that uses the library, while no other thread does.
///
/// # Errors
///
/// There is no library, it cannot be loaded, or the function has failed.
pub(crate) fn with<T>(call: impl FnOnce(&Pdfium) -> Result<T, ReadError>) -> Result<T, ReadError> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    static LOCK: Mutex<()> = Mutex::new(());
    let _alone = LOCK.lock();
    let loaded = LOADED.get_or_init(|| {
        let path = path()?;
        let bindings = Pdfium::bind_to_library(&path);
        let bindings = bindings.map_err(|error| format!("`{}` cannot be loaded: {error}", path.display()))?;
        Ok(Library(Pdfium::new(bindings)))
    });
    let library = loaded.as_ref().map_err(|reason| ReadError::NoPdfium { reason: reason.clone() })?;
    call(&library.0)
}

/// `$PDFIUM_PATH`, or else the library in `models/pdfium/` of the working directory, of a directory above it, or of one
/// above the program, or the one that is installed with the program, in `../lib/turnflow`.
fn path() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(given);
        return match path.exists() {
            true => Ok(path),
            false => Err(format!("${VARIABLE} names `{}`, which does not exist", path.display())),
        };
    }
    let name = Pdfium::pdfium_platform_library_name();
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let here = std::env::current_dir().unwrap_or_default();
    let near = here.ancestors().chain(program.ancestors().skip(1)).map(|directory| directory.join(PLACE));
    let installed = program.ancestors().nth(2).map(|directory| directory.join("lib/turnflow"));
    let found = near.chain(installed).map(|directory| directory.join(&name)).find(|path| path.exists());
    found.ok_or_else(|| format!("run `turnflow models fetch pdfium`, or set ${VARIABLE}"))
}
