//! Tests loaders of several ranks that share the reading of a dataset. Here each rank is a thread
//! of the test, and channels between the threads carry the rows that ranks exchange.

use std::sync::mpsc::{Receiver, Sender, channel};

use data::{
    BatchShare, Dataset, Error, Loaded, Loader, LoaderOptions, Position, RowSharing, Shuffle,
};
use schema::random::CounterRng;

use crate::fixture::{Folder, in_order};
use crate::loading::{ROWS, damage, dataset, features, load, shuffled};

/// Creates the sharing of each of `ranks` ranks. An exchange fails once a rank is gone.
fn sharings(ranks: usize) -> Vec<RowSharing> {
    let (mut senders, mut receivers): (Vec<Vec<Sender<_>>>, Vec<Vec<Receiver<_>>>) =
        ((0..ranks).map(|_| Vec::new()).collect(), (0..ranks).map(|_| Vec::new()).collect());
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel::<Vec<u8>>();
            from.push(sender);
            to.push(receiver);
        }
    }
    let ends = (0..).zip(senders).zip(receivers);
    ends.map(|((rank, senders), receivers)| RowSharing {
        rank,
        ranks: ranks as u32,
        exchange: Box::new(move |parts| {
            for (part, sender) in parts.iter_mut().zip(&senders) {
                sender.send(std::mem::take(part))?;
            }
            for (part, receiver) in parts.iter_mut().zip(&receivers) {
                *part = receiver.recv()?;
            }
            Ok(())
        }),
        abandon: Box::new(|| ()),
    })
    .collect()
}

/// Runs `work` for the loader of each rank, each with a dataset of its own.
fn on_ranks<T: Send>(
    dataset: &Dataset,
    options: &LoaderOptions,
    ranks: usize,
    work: impl Fn(u32, &mut Loader) -> T + Sync,
) -> Vec<(T, u64)> {
    let work = &work;
    std::thread::scope(|scope| {
        let rank = |sharing: RowSharing| {
            scope.spawn(move || {
                let own = Dataset::open(dataset.dir()).unwrap();
                let rank = sharing.rank;
                let mut loader =
                    Loader::start_shared(&own, &features(), options.clone(), Some(sharing))
                        .unwrap();
                let result = work(rank, &mut loader);
                loader.finish();
                (result, own.pages_read())
            })
        };
        let ranks: Vec<_> = sharings(ranks).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Checks that the shares of all ranks are consecutive parts of the batches of one loader, that no
/// page is decompressed twice, and that all ranks count the ids of all rows.
fn check(dataset: &Dataset, options: &LoaderOptions, ranks: usize) {
    let what = format!("{ranks} ranks, {options:?}");
    let alone = Dataset::open(dataset.dir()).unwrap();
    let whole = load(&alone, options.clone());
    let shared = on_ranks(dataset, options, ranks, |_, loader| {
        loader.map(Result::unwrap).collect::<Vec<_>>()
    });
    for (number, Loaded { batch, share, position }) in whole.iter().enumerate() {
        assert_eq!(*share, None);
        let mut first_sample = 0;
        for (loaded, _) in &shared {
            let Loaded { batch: own, share, position: place } = &loaded[number];
            let expected = BatchShare { first_sample, global_size: batch.size };
            assert_eq!((*share, place), (Some(expected), position), "{what}");
            let end = first_sample + own.size;
            assert!(*own == batch.slice(first_sample..end), "{what}: batch {number}");
            first_sample = end;
        }
        assert_eq!(first_sample, batch.size, "{what}: batch {number}");
    }
    let pages: Vec<u64> = shared.iter().map(|(_, pages)| *pages).collect();
    assert!(shared.iter().all(|(loaded, _)| loaded.len() == whole.len()), "{what}");
    assert_eq!(pages.iter().sum::<u64>(), alone.pages_read(), "{what}: {pages:?}");
}

#[test]
fn ranks_that_share_the_reading_get_parts_of_the_same_batches() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let one_window = Some(Shuffle { seed: 3, buffer_rows: ROWS });
    for ranks in [2, 3, 4, 7] {
        // Batches of 2 samples leave most ranks without a sample.
        for batch_size in [2, 37, 500] {
            for (shuffle, drop_last) in
                [(shuffled(1).shuffle, false), (one_window, true), (None, false)]
            {
                let all = shuffled(1);
                check(&dataset, &LoaderOptions { batch_size, shuffle, drop_last, ..all }, ranks);
            }
        }
    }
}

#[test]
fn ranks_that_share_the_reading_resume_and_stop_where_one_would() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let all = load(&dataset, shuffled(1));
    for done in [0, 1, 5, 6, 26, 27, 30, 53] {
        let start = all[done].position.clone();
        let left = all.len() - done - 1;
        for batches in [None, Some(1), Some(4)] {
            let options = LoaderOptions { start: start.clone(), batches, ..shuffled(1) };
            let expected = batches.map_or(left, |most| left.min(most as usize));
            assert!(load(&dataset, options.clone())[..] == all[done + 1..][..expected]);
            check(&dataset, &options, 3);
        }
    }
}

#[test]
fn a_limit_of_batches_ends_reading_after_their_windows() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let pages = |batches| {
        let dataset = Dataset::open(dataset.dir()).unwrap();
        let loaded = load(&dataset, LoaderOptions { batches, epochs: Some(1), ..shuffled(1) });
        (loaded.len(), dataset.pages_read())
    };
    let (all, whole) = pages(None);
    // A window has 4 of 16 row groups, of which the last has fewer rows.
    assert_eq!((all, pages(Some(5))), (28, (5, whole / 4)));
}

#[test]
fn loaders_that_are_finished_early_do_not_wait_for_each_other() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    for taken in [0, 1, 3, 10, 28, 40] {
        let counts = on_ranks(&dataset, &shuffled(1), 4, |rank, loader| {
            // The ranks are at different places when they stop.
            std::thread::sleep(std::time::Duration::from_millis(u64::from(rank) * 3));
            loader.take(taken).map(Result::unwrap).count()
        });
        assert!(counts.iter().all(|(count, _)| *count == taken));
    }
}

#[test]
fn random_options_and_ends_give_parts_of_the_same_batches() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    for case in 0..150 {
        let rng = CounterRng::new(case, 0);
        let below = |at, end| rng.below(at, end);
        let first = below(0, 400);
        let options = LoaderOptions {
            batch_size: 1 + below(1, 90) as usize,
            shuffle: (below(2, 4) > 0)
                .then(|| Shuffle { seed: case, buffer_rows: 1 + below(3, 700) as usize }),
            drop_last: below(4, 2) == 0,
            rows: first..first + 100 + below(5, 500),
            start: Position::default(),
            epochs: Some(1 + below(6, 3)),
            batches: (below(7, 2) == 0).then(|| 1 + below(8, 40)),
        };
        let whole = load(&dataset, options.clone());
        // Some runs end before their data.
        let taken = whole.len() - (below(9, 2) * below(10, whole.len() as u64)) as usize;
        let ranks = 2 + below(11, 5) as usize;
        let shared = on_ranks(&dataset, &options, ranks, |_, loader| {
            loader.take(taken).map(|loaded| loaded.unwrap().batch).collect::<Vec<_>>()
        });
        for (number, Loaded { batch, .. }) in whole[..taken].iter().enumerate() {
            let labels = shared.iter().flat_map(|(batches, _)| &batches[number].labels);
            assert!(labels.eq(&batch.labels), "case {case}: batch {number}");
        }
    }
}

#[test]
fn a_rank_that_cannot_read_its_part_fails_all_ranks_with_its_error() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    damage(&dataset);
    let options = LoaderOptions { epochs: Some(1), ..in_order(&dataset, 10) };
    let results = on_ranks(&dataset, &options, 3, |_, loader| {
        let loaded: Result<Vec<_>, Error> = loader.collect();
        loaded.unwrap_err()
    });
    let errors: Vec<Error> = results.into_iter().map(|(error, _)| error).collect();
    let is_peer = |error: &&Error| matches!(error, Error::PeerInput { .. });
    assert_eq!(errors.iter().filter(is_peer).count(), 2, "{errors:?}");
    let own = errors.iter().find(|error| !is_peer(error)).unwrap().to_string();
    assert!(errors.iter().all(|error| error.to_string().ends_with(&own)), "{errors:?}");
}

#[test]
fn a_rank_that_leaves_in_the_middle_fails_the_others() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let results: Vec<Result<usize, Error>> = std::thread::scope(|scope| {
        let dataset = &dataset;
        let rank = |sharing: RowSharing| {
            scope.spawn(move || {
                let rank = sharing.rank;
                let options = shuffled(1);
                let mut loader =
                    Loader::start_shared(dataset, &features(), options, Some(sharing))?;
                // A loader that is dropped without `finish` ends the waiting of its rank.
                let most = if rank == 1 { 8 } else { usize::MAX };
                let mut count = 0;
                while count < most
                    && let Some(loaded) = loader.next()
                {
                    loaded?;
                    count += 1;
                }
                Ok(count)
            })
        };
        let ranks: Vec<_> = sharings(3).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(matches!(results[1], Ok(8)));
    for result in [&results[0], &results[2]] {
        assert!(matches!(result, Err(Error::RowExchange { .. })), "{result:?}");
    }
}

#[test]
fn a_position_of_another_run_is_refused_before_a_row_is_exchanged() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let order = load(&dataset, shuffled(1))[3].position.order;
    let start = Position { batch: 4, order, ..Position::default() };
    let options = LoaderOptions { start, ..shuffled(2) };
    assert!(matches!(
        Loader::check(&dataset, &features(), &options),
        Err(Error::PositionMismatch { .. })
    ));
}
