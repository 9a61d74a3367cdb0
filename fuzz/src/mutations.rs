//! Seeded mutations of inputs: deterministic on every machine.

/// Makes inputs from seeds.
pub struct Mutator(u64);

impl Mutator {
    /// The same seed makes the same inputs.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, below: usize) -> usize {
        // Marsaglia's xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..start + self.below((length - start).min(200) + 1)
    }

    /// One of the seeds, changed in a few places.
    pub fn mutate(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        const TOKENS: &[&[u8]] = &[
            b"\0",
            b"\xff",
            b"\xef\xbb\xbf",
            b"\r\n",
            b"\n",
            b"\"",
            b"\\",
            b"{",
            b"}",
            b"[",
            b"]",
            b"(",
            b")",
            b"<",
            b"-1",
            b"0",
            b"1e999",
            b"18446744073709551615",
            b"-9223372036854775808",
            b"null",
            b"NaN",
            b"/*",
            b"//",
            b"\\u0000",
            b"\\ud800",
            b"r#\"",
            b"---\n",
            b"```",
            b"<!--",
            b"<div>",
            b"<<",
            b">>",
            b" obj",
            b"stream\n",
        ];
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(9) {
                0 if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 << self.below(8);
                }
                1 if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] = self.below(256) as u8;
                }
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(self.range(bytes.len()))),
                4 => {
                    let part = bytes[self.range(bytes.len())].to_vec();
                    let times = 1 + self.below(20);
                    drop(bytes.splice(at..at, part.repeat(times)));
                }
                5 => {
                    let other = &seeds[self.below(seeds.len())];
                    let part = other[self.range(other.len())].to_vec();
                    drop(bytes.splice(at..at, part));
                }
                6 => {
                    let token = TOKENS[self.below(TOKENS.len())];
                    drop(bytes.splice(at..at, token.iter().copied()));
                }
                // For deep nesting and very long words.
                7 if self.below(8) == 0 => {
                    let token = TOKENS[self.below(TOKENS.len())];
                    let times = 1 << self.below(14);
                    drop(bytes.splice(at..at, token.repeat(times)));
                }
                8 if self.below(8) == 0 => {
                    let letter = b'0' + self.below(75) as u8;
                    let times = 1 << self.below(17);
                    drop(bytes.splice(at..at, std::iter::repeat_n(letter, times)));
                }
                _ => {}
            }
        }
        bytes.truncate(1 << 18);
        bytes
    }
}
