//! Builds single components without an engine, for tools and tests.

use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Runtime};

use super::{BuildError, BuildFuture, ComponentContext, ComponentError, Model, ModelConfig, Models};
use super::{Operator, OperatorConfig};

/// The runtime of components that no engine has built. It lives as long as the process.
fn runtime(name: &str) -> Result<&'static Runtime, BuildError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let failed = |error| BuildError::Component { component: name.to_owned(), source: ComponentError::new(error) };
    let made = Builder::new_multi_thread().worker_threads(1).thread_name("turnflow-alone").enable_all().build();
    let made = made.map_err(failed)?;
    Ok(RUNTIME.get_or_init(|| made))
}

fn wait<T>(name: &str, build: impl FnOnce(&ComponentContext) -> Result<T, BuildError>) -> Result<T, BuildError> {
    let handle = runtime(name)?.handle();
    let _entered = handle.enter();
    build(&ComponentContext::alone(name, handle.clone()))
}

/// Waits for a future on the calling thread, which may belong to another runtime.
fn block_on<T>(future: BuildFuture<'_, T>) -> Result<T, BuildError> {
    futures::executor::block_on(future)
}

/// Loads a model without an engine; blocks until it is loaded.
///
/// # Errors
///
/// The model cannot be loaded.
pub fn load_alone(config: &dyn ModelConfig, name: &str) -> Result<Model, BuildError> {
    wait(name, |context| block_on(config.load(context)))
}

/// Builds an operator without an engine; blocks until it is built.
///
/// # Errors
///
/// The operator cannot be built.
pub fn build_alone(config: &dyn OperatorConfig, name: &str, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
    wait(name, |context| block_on(config.build(context, models)))
}
