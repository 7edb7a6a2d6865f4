//! A pipeline in which one thread produces items, several process them, and the caller consumes the
//! results in the order of production.
//!
//! All queues are bounded, so memory does not depend on the number of items. The result does not
//! depend on the number of threads.

use crossbeam_channel::{Receiver, Sender, bounded};

/// Sends an item into the pipeline. The function returns `false` if no more items are wanted.
pub(crate) type SendItem<'a, I> = &'a mut dyn FnMut(I) -> bool;

/// Largest number of items that are produced, processed or waiting at the same time.
pub(crate) fn in_flight(threads: usize) -> usize {
    // One item is being produced and one consumed.
    depth(threads) + 2
}

fn depth(threads: usize) -> usize {
    threads.max(1) * 2
}

/// Runs `produce` on its own thread, `work` on `threads` threads and `consume` on the calling
/// thread.
///
/// # Errors
/// Returns the first error of `consume`, or else the error of `produce`. Either error stops the
/// pipeline.
pub(crate) fn run<I, O, E>(
    threads: usize,
    produce: impl FnOnce(SendItem<'_, I>) -> Result<(), E> + Send,
    work: impl Fn(I) -> O + Sync,
    mut consume: impl FnMut(O) -> Result<(), E>,
) -> Result<(), E>
where
    I: Send,
    O: Send,
    E: Send,
{
    let depth = depth(threads);
    let (jobs, queue) = bounded::<(I, Sender<O>)>(depth);
    let (order, results) = bounded::<Receiver<O>>(depth);
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || {
            produce(&mut |item| {
                let (answer, result) = bounded(1);
                order.send(result).is_ok() && jobs.send((item, answer)).is_ok()
            })
        });
        let work = &work;
        for _ in 0..threads.max(1) {
            let queue = queue.clone();
            scope.spawn(move || {
                for (item, answer) in queue {
                    // Sending fails only after the consumer has stopped. The remaining items are
                    // then drained.
                    let _ = answer.send(work(item));
                }
            });
        }
        drop(queue);
        let mut consumed = Ok(());
        for result in results {
            // A worker that panicked drops its sender; the scope propagates the panic.
            let Ok(output) = result.recv() else { break };
            consumed = consume(output);
            if consumed.is_err() {
                break;
            }
        }
        match producer.join() {
            Ok(produced) => consumed.and(produced),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn results_keep_the_order_of_production_for_any_thread_count() {
        for threads in [1, 2, 7] {
            let mut seen = Vec::new();
            let produce = |send: super::SendItem<'_, u64>| {
                for item in 0..500 {
                    send(item);
                }
                Ok::<(), ()>(())
            };
            let consume = |item: u64| {
                seen.push(item);
                Ok(())
            };
            assert_eq!(run(threads, produce, |item| item * 2, consume), Ok(()));
            assert_eq!(seen, (0..500).map(|item| item * 2).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn an_error_of_the_consumer_stops_an_endless_producer() {
        let produce = |send: super::SendItem<'_, u64>| {
            while send(1) {}
            Ok(())
        };
        let mut left = 3;
        let consume = |_| {
            left -= 1;
            if left == 0 { Err("enough") } else { Ok(()) }
        };
        assert_eq!(run(2, produce, |item| item, consume), Err("enough"));
    }
}
