//! The entry into a generation: a queue within the worker, so that conversations do not depend on the
//! plan that answers a turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use timely::scheduling::Activator;

use super::{Flow, RunningNode};

pub(super) struct Ingress {
    queue: RefCell<VecDeque<Flow>>,
    closed: Cell<bool>,
    activator: Activator,
}

impl Ingress {
    pub fn give(&self, flow: Flow) {
        self.queue.borrow_mut().push_back(flow);
        self.activator.activate();
    }

    /// Closes the entry: the generation ends when it has delivered all its turns.
    pub fn close(&self) {
        self.closed.set(true);
        self.activator.activate();
    }
}

pub(super) fn build<'s>(scope: Scope<'s, u64>, node: &RunningNode) -> (Rc<Ingress>, StreamVec<'s, u64, Flow>) {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let (output, stream) = builder.new_output::<Vec<Flow>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let activator = scope.activator_for(builder.operator_info().address);
    let ingress = Rc::new(Ingress { queue: RefCell::default(), closed: Cell::new(false), activator });
    let this = ingress.clone();
    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        capabilities.clear();
        move |_| {
            let Some(held) = &capability else { return };
            let mut output = output.activate();
            for flow in this.queue.borrow_mut().drain(..) {
                output.session(held).give(flow);
            }
            if this.closed.get() {
                capability = None;
            }
        }
    });
    (ingress, stream)
}
