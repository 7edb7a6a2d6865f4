//! Tests how ranks are grouped by host.

use comm::{Error, HostCommunicators, world};
use schema::{HostLayout, HostLayoutError, Rank};

use crate::on_ranks;

#[test]
fn threads_of_one_process_are_on_one_host() {
    for layout in on_ranks(world(3), |end| end.gather_host_layout().unwrap()) {
        assert_eq!(layout, HostLayout::with_ranks_per_host(3, 3).unwrap());
    }
}

#[test]
fn a_rank_has_a_communicator_within_and_one_between_hosts() {
    for hosts in [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] {
        let layout = HostLayout::from_hosts(&hosts);
        on_ranks(world(4), |end| {
            let rank = end.rank();
            let mut levels = HostCommunicators::split(end, &layout).unwrap();
            let mut second = levels.duplicate();
            for levels in [&mut levels, &mut second] {
                let within = levels.within().all_gather(&[rank.0 as i32]).unwrap().concat();
                let between = levels.between().all_gather(&[rank.0 as i32]).unwrap().concat();
                let expected = |is_member: &dyn Fn(usize) -> bool| -> Vec<i32> {
                    (0..4).filter(|&r| is_member(r)).map(|r| r as i32).collect()
                };
                let rank_at = |r: usize| Rank(r as u32);
                let (host, place) = (layout.host(rank), layout.place(rank));
                assert_eq!(within, expected(&|r| layout.host(rank_at(r)) == host), "{hosts:?}");
                assert_eq!(between, expected(&|r| layout.place(rank_at(r)) == place), "{hosts:?}");
            }
        });
    }
}

#[test]
fn all_ranks_refuse_layouts_that_do_not_fit() {
    let unequal = HostLayout::from_hosts(&[0, 0, 1]);
    let results = on_ranks(world(3), |end| HostCommunicators::split(end, &unequal).err());
    let error = Error::Hosts(HostLayoutError::Unequal { host: 1, expected: 2, got: 1 });
    assert_eq!(results, vec![Some(error); 3]);

    let results = on_ranks(world(4), |end| {
        let hosts = if end.rank().0 == 2 { [0, 1, 0, 1] } else { [0, 0, 1, 1] };
        HostCommunicators::split(end, &HostLayout::from_hosts(&hosts)).err()
    });
    for error in results {
        let text = error.unwrap().to_string();
        let expected =
            "rank 0 has the ranks on hosts [0, 0, 1, 1]; rank 2 has them on [0, 1, 0, 1]";
        assert_eq!(text, expected);
    }
}
