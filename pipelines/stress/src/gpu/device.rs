//! What `nvidia-smi` says of the GPU, and CUDA's driver interface for what a pipeline never does: to take all memory, and
//! to break the device.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// A sentence on the machine.
pub(super) fn about(gpu: i32) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fields = "--query-gpu=name,driver_version,memory.total";
    let asked = Command::new("nvidia-smi").args([fields, "--format=csv,noheader", "-i", &gpu.to_string()]).output();
    let gpu = match asked {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "no NVIDIA GPU".to_owned(),
    };
    format!("{gpu}; {cores} CPU cores; turnflow {}.", env!("CARGO_PKG_VERSION"))
}

/// A reading of the GPU.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    /// Share of the time in which a kernel ran, in per cent.
    busy: f64,
    /// Memory in use by all processes, in MiB.
    memory: f64,
}

/// Reads the GPU's state ten times a second.
pub(super) struct Watch {
    process: Option<Child>,
    readings: Arc<Mutex<Vec<Reading>>>,
}

impl Watch {
    /// Starts reading. Without `nvidia-smi` there are no readings.
    pub fn start(gpu: i32) -> Self {
        let readings = Arc::<Mutex<Vec<Reading>>>::default();
        let process = Command::new("nvidia-smi")
            .args(["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "100", "-i"])
            .arg(gpu.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = process.ok();
        if let Some(output) = process.as_mut().and_then(|process| process.stdout.take()) {
            let readings = readings.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
                    if let (Some(Ok(busy)), Some(Ok(memory))) = (fields.next(), fields.next()) {
                        readings.lock().push(Reading { at: Instant::now(), busy, memory });
                    }
                }
            });
        }
        Self { process, readings }
    }

    /// Mean utilization in per cent since a moment.
    pub fn busy_since(&self, begun: Instant) -> Option<f64> {
        let busy: Vec<f64> =
            self.readings.lock().iter().filter(|reading| reading.at >= begun).map(|reading| reading.busy).collect();
        (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64)
    }

    /// The last reading of memory in MiB.
    pub fn memory(&self) -> Option<f64> {
        // A reading that was made after this call.
        std::thread::sleep(std::time::Duration::from_millis(250));
        self.readings.lock().last().map(|reading| reading.memory)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A per cent, or `-`.
pub(super) fn per_cent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{share:.0} %"))
}

type Status = c_int;

/// A kernel that writes to address 0.
const FAULT: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry fault() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 0;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
";

/// CUDA's driver interface on one device, in the context that ONNX Runtime uses.
pub(super) struct Driver {
    library: *mut c_void,
}

impl Driver {
    /// Opens `libcuda.so.1` and the device's primary context.
    pub fn open(gpu: i32) -> anyhow::Result<Self> {
        // SAFETY: the name is a string that ends with a zero.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        anyhow::ensure!(!library.is_null(), "there is no libcuda.so.1");
        let this = Self { library };
        let mut device: c_int = 0;
        let mut context: *mut c_void = std::ptr::null_mut();
        // SAFETY: the signatures are those of cuda.h, and the pointers are to local values.
        unsafe {
            let start: extern "C" fn(c_uint) -> Status = this.symbol("cuInit")?;
            done("cuInit", start(0))?;
            let get: extern "C" fn(*mut c_int, c_int) -> Status = this.symbol("cuDeviceGet")?;
            done("cuDeviceGet", get(&raw mut device, gpu))?;
            let retain: extern "C" fn(*mut *mut c_void, c_int) -> Status = this.symbol("cuDevicePrimaryCtxRetain")?;
            done("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
            let set: extern "C" fn(*mut c_void) -> Status = this.symbol("cuCtxSetCurrent")?;
            done("cuCtxSetCurrent", set(context))?;
        }
        Ok(this)
    }

    /// A function of the library.
    ///
    /// # Safety
    ///
    /// `F` must be the function's signature.
    unsafe fn symbol<F: Copy>(&self, name: &str) -> anyhow::Result<F> {
        let terminated = CString::new(name)?;
        // SAFETY: the library is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.library, terminated.as_ptr()) };
        anyhow::ensure!(!found.is_null(), "libcuda.so.1 has no `{name}`");
        // SAFETY: a function's address; the caller vouches for the signature.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    /// Free memory in bytes.
    pub fn free(&self) -> anyhow::Result<usize> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the signature is that of cuda.h.
        unsafe {
            let info: extern "C" fn(*mut usize, *mut usize) -> Status = self.symbol("cuMemGetInfo_v2")?;
            done("cuMemGetInfo", info(&raw mut free, &raw mut total))?;
        }
        Ok(free)
    }

    /// Takes memory until this many bytes are free; returns the addresses.
    pub fn fill(&self, leave: usize) -> anyhow::Result<Vec<u64>> {
        let mut taken = Vec::new();
        let mut size = self.free()?.saturating_sub(leave);
        while size > 1 << 20 && self.free()? > leave {
            let mut address = 0_u64;
            // SAFETY: the signature is that of cuda.h.
            let status = unsafe {
                let allocate: extern "C" fn(*mut u64, usize) -> Status = self.symbol("cuMemAlloc_v2")?;
                allocate(&raw mut address, size)
            };
            if status == 0 {
                taken.push(address);
                size = self.free()?.saturating_sub(leave);
            } else {
                size /= 2;
            }
        }
        Ok(taken)
    }

    /// Frees what [`Driver::fill`] took.
    pub fn release(&self, taken: &[u64]) -> anyhow::Result<()> {
        // SAFETY: the signature is that of cuda.h; the addresses are from `fill`.
        unsafe {
            let free: extern "C" fn(u64) -> Status = self.symbol("cuMemFree_v2")?;
            taken.iter().try_for_each(|address| done("cuMemFree", free(*address)))
        }
    }

    /// Runs a kernel that writes to address 0. The context is unusable afterwards, as after a fault of the hardware.
    /// Returns CUDA's error.
    pub fn fail(&self) -> anyhow::Result<Status> {
        let text = CString::new(FAULT)?;
        let (mut module, mut function): (*mut c_void, *mut c_void) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the signatures are those of cuda.h, and the pointers are to local values.
        unsafe {
            let load: extern "C" fn(*mut *mut c_void, *const c_void) -> Status = self.symbol("cuModuleLoadData")?;
            done("cuModuleLoadData", load(&raw mut module, text.as_ptr().cast()))?;
            let get: extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> Status =
                self.symbol("cuModuleGetFunction")?;
            done("cuModuleGetFunction", get(&raw mut function, module, c"fault".as_ptr()))?;
            type Launch = extern "C" fn(
                *mut c_void,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                *mut c_void,
                *mut *mut c_void,
                *mut *mut c_void,
            ) -> Status;
            let launch: Launch = self.symbol("cuLaunchKernel")?;
            let none = std::ptr::null_mut();
            done(
                "cuLaunchKernel",
                launch(function, 1, 1, 1, 1, 1, 1, 0, std::ptr::null_mut(), none, std::ptr::null_mut()),
            )?;
            let wait: extern "C" fn() -> Status = self.symbol("cuCtxSynchronize")?;
            Ok(wait())
        }
    }
}

fn done(function: &str, status: Status) -> anyhow::Result<()> {
    anyhow::ensure!(status == 0, "{function} returned {status}");
    Ok(())
}
