//! Stores that this process opens once and several connectors share: a reload builds the second connector of a store
//! while the first one runs, and redb does not open a file twice.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::ConnectorError;

/// Location of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    File(PathBuf),
    /// In memory, for as long as the store is open. Other runs have other stores.
    Memory {
        run: u64,
        component: String,
    },
}

impl Place {
    /// The location of a component's store: a file in its directory, or in memory if there is no state directory.
    pub fn of(context: &ComponentContext, file: &str) -> Result<Self, ConnectorError> {
        let io = |action| move |source| ConnectorError::Io { action, path: context.id().to_owned(), source };
        Ok(match context.state_directory().map_err(io("create the directory of"))? {
            // One file has one name, so that it is not opened twice.
            Some(directory) => Self::File(directory.canonicalize().map_err(io("read the directory of"))?.join(file)),
            None => Self::Memory { run: context.run(), component: context.id().to_owned() },
        })
    }
}

/// The open stores of one kind.
pub(crate) struct OpenOnce<T: 'static> {
    open: Mutex<BTreeMap<Place, Weak<Opened<T>>>>,
    /// Signals that a store has left `open`.
    closed: Condvar,
}

/// An open store.
pub(crate) struct Opened<T: 'static> {
    store: T,
    /// Dropped last, when the store is closed and can be opened again.
    _entry: Entry<T>,
}

/// The entry of a store; removed on drop.
struct Entry<T: 'static> {
    place: Place,
    of: &'static OpenOnce<T>,
}

impl<T: 'static> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.store
    }
}

impl<T: 'static> Drop for Entry<T> {
    fn drop(&mut self) {
        self.of.open.lock().remove(&self.place);
        self.of.closed.notify_all();
    }
}

impl<T: 'static> OpenOnce<T> {
    /// No open stores.
    pub const fn new() -> Self {
        Self { open: Mutex::new(BTreeMap::new()), closed: Condvar::new() }
    }

    /// Returns the open store at a place; otherwise `make` opens it.
    pub fn open<E>(
        &'static self,
        place: Place,
        make: impl FnOnce(&Place) -> Result<T, E>,
    ) -> Result<Arc<Opened<T>>, E> {
        let mut open = self.open.lock();
        while let Some(store) = open.get(&place) {
            match store.upgrade() {
                Some(store) => return Ok(store),
                // The store is being closed.
                None => self.closed.wait(&mut open),
            }
        }
        let store = make(&place)?;
        let store = Arc::new(Opened { store, _entry: Entry { place: place.clone(), of: self } });
        open.insert(place, Arc::downgrade(&store));
        Ok(store)
    }
}
