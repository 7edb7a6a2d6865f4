use schema::random::CounterRng;

use super::{Bins, Forest, LEAVES, Tree};

const FEATURES: u64 = 7;

/// Creates a tree with the given number of leaves and random splits.
fn tree(leaves: usize, random: CounterRng) -> Tree {
    let mut tree = Tree::new(0.5);
    push(&mut tree, leaves, random);
    tree
}

fn push(tree: &mut Tree, leaves: usize, random: CounterRng) {
    if leaves == 1 {
        return tree.push_leaf(random.below(0, 900) as i32 - 450);
    }
    let left = 1 + random.below(1, leaves as u64 - 1) as usize;
    let split = tree.push_split(random.below(2, FEATURES) as u8, random.below(3, 255) as u8);
    push(tree, left, random.child(1));
    tree.begin_right(split);
    push(tree, leaves - left, random.child(2));
}

fn forest(trees: u64) -> Forest {
    let random = CounterRng::new(4, 0);
    let tree = |number| {
        let leaves = 1 + random.below(number, LEAVES as u64) as usize;
        tree(leaves, random.child(number))
    };
    Forest::new(1.5, -1e9..=1e9, (0..trees).map(tree).collect())
}

#[test]
fn forests_round_trip_as_json() {
    let largest = Forest::new(0.0, 0.0..=1.0, vec![tree(LEAVES, CounterRng::new(1, 1))]);
    for forest in [forest(0), forest(40), largest] {
        let json = serde_json::to_string(&forest).unwrap();
        assert_eq!(serde_json::from_str::<Forest>(&json).unwrap(), forest);
    }
}

/// Parses a forest of one tree from three of the columns of the stored form.
fn parse_tree(below: &[u8], features: &[u8], leaves: &[i32]) -> Result<Forest, serde_json::Error> {
    let json = serde_json::json!({
        "start": 0.0, "bounds": [0.0, 1.0], "steps": [0.5],
        "below": below, "features": features, "leaves": leaves,
    });
    serde_json::from_value(json)
}

#[test]
fn incomplete_and_oversized_trees_are_refused() {
    let split = parse_tree(&[3, 0, 0], &[6], &[1, 2]).unwrap();
    let bins = |features: usize| Bins::from_rows(&[&vec![0.0; features][..]], 2);
    assert!(split.fits(&bins(7)) && !split.fits(&bins(6)));
    assert!(parse_tree(&[3, 0], &[6], &[1, 2]).is_err());
    assert!(parse_tree(&[3, 0, 0, 0], &[6], &[1, 2, 3]).is_err());
    assert!(parse_tree(&[3, 0, 0], &[], &[1, 2]).is_err());
    assert!(parse_tree(&[3, 0, 0], &[6], &[1, 2, 3]).is_err());
    // The fixture is a chain of splits, each of which has a leaf on its left.
    let chain = |splits: usize| {
        parse_tree(
            &[[3, 0].repeat(splits), vec![0]].concat(),
            &vec![6; splits],
            &vec![1; splits + 1],
        )
    };
    assert!(chain(LEAVES - 1).is_ok() && chain(LEAVES).is_err());
}
