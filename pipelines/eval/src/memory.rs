//! Resident memory of this process.

/// Resident memory of this process, in MB, as the operating system reports it.
#[derive(Clone, Copy)]
pub struct Resident {
    /// The current value.
    pub now: f64,
    /// The maximum so far.
    pub peak: f64,
}

/// Reads the resident memory.
///
/// # Errors
///
/// There is no `/proc`.
pub fn resident() -> std::io::Result<Resident> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = "resident memory is read from /proc/self/status, which only Linux has";
    parse(&status).ok_or_else(|| std::io::Error::new(std::io::ErrorKind::Unsupported, missing))
}

fn parse(status: &str) -> Option<Resident> {
    let field = |name: &str| {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1024.0)
    };
    Some(Resident { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status() {
        let memory =
            parse("Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n").map(|memory| (memory.now, memory.peak));
        assert_eq!(memory, Some((2.0, 4.0)));
        assert!(parse("Name:\tx\n").is_none());
    }
}
