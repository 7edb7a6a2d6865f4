//! A pipeline: one thread produces, several work, the caller consumes in the order of production.
//!
//! Bounded at every joint, so memory does not depend on the length of the stream; the result does
//! not depend on the number of threads. Knows nothing of files.

use crossbeam_channel::{Receiver, Sender, bounded};

/// Hands items to the pipeline; says `false` when nobody wants more.
pub(crate) type SendItem<'a, I> = &'a mut dyn FnMut(I) -> bool;

/// Items that are produced, worked on or waiting to be consumed, at most.
pub(crate) fn in_flight(threads: usize) -> usize {
    // One is being produced, one consumed.
    depth(threads) + 2
}

fn depth(threads: usize) -> usize {
    threads.max(1) * 2
}

/// Runs `produce` on a thread of its own, `work` on `threads` threads and `consume` on the
/// caller's.
///
/// # Errors
/// The first error of `consume`, else that of `produce`. An error of either stops the others.
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
                    // A send fails only when the consumer has stopped; the rest is then drained.
                    let _ = answer.send(work(item));
                }
            });
        }
        drop(queue);
        let mut consumed = Ok(());
        for result in results {
            // A worker that panicked drops its answer; the scope passes the panic on.
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
    fn order_is_that_of_production_for_any_thread_count() {
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
