//! The dataflow that carries messages between processes. It ends when every process has closed its end.
//!
//! Messages belong to no time, so that timely does not broadcast that each has been sent and received. Only the last one
//! of each worker to each other worker does: when the dataflow ends, all messages have arrived, since they keep their
//! order.

use std::sync::Arc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::CapabilitySet;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use super::peers::Peers;
use super::wire::Envelope;

/// Builds the dataflow on this worker.
pub(crate) fn build(scope: Scope<'_, u64>, peers: &Arc<Peers>) {
    let worker = peers.shape.local(scope.index());
    let mut builder = OperatorBuilder::new("Outbox".to_owned(), scope);
    let (output, stream) = builder.new_output::<Vec<Envelope>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let (queue, wake) = peers.outbox(worker);
    wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    let of_outbox = peers.clone();
    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        capabilities.clear();
        move |_| {
            let Some(held) = &capability else { return };
            // Loaded before the queue is read: what was sent before is sent.
            let is_closing = of_outbox.is_closing();
            let mut output = output.activate();
            output.session(&CapabilitySet::new()).give_iterator(queue.try_iter());
            if is_closing {
                output.session(held).give_iterator(of_outbox.last());
                drop(output);
                capability = None;
            }
        }
    });
    let mut builder = OperatorBuilder::new("Inbox".to_owned(), scope);
    let mut input = builder.new_input(stream, Exchange::new(|envelope: &Envelope| envelope.to));
    let peers = peers.clone();
    builder.build(move |_| {
        move |_| {
            // In the order in which they came. Sorted by time, the last one could come before others.
            input.for_each(|_, batch| batch.drain(..).for_each(|envelope| peers.receive(worker, envelope)));
        }
    });
}
