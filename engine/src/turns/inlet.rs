//! Where turns enter a generation: a queue within the worker, so that conversations need not
//! know by which plan a turn is answered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use timely::scheduling::Activator;

use super::RunningNode;
use crate::record::Item;

pub(super) struct Inlet {
    queue: RefCell<VecDeque<Item>>,
    closed: Cell<bool>,
    activator: Activator,
}

impl Inlet {
    pub fn give(&self, item: Item) {
        self.queue.borrow_mut().push_back(item);
        self.activator.activate();
    }

    /// Nothing more will come: the generation ends when it has delivered what has.
    pub fn close(&self) {
        self.closed.set(true);
        self.activator.activate();
    }
}

pub(super) fn build<'s>(scope: Scope<'s, u64>, node: &RunningNode) -> (Rc<Inlet>, StreamVec<'s, u64, Item>) {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let (output, stream) = builder.new_output::<Vec<Item>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let activator = scope.activator_for(builder.operator_info().address);
    let inlet = Rc::new(Inlet { queue: RefCell::default(), closed: Cell::new(false), activator });
    let this = inlet.clone();
    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        capabilities.clear();
        move |_| {
            let Some(held) = &capability else { return };
            let mut output = output.activate();
            for item in this.queue.borrow_mut().drain(..) {
                output.session(held).give(item);
            }
            if this.closed.get() {
                capability = None;
            }
        }
    });
    (inlet, stream)
}
