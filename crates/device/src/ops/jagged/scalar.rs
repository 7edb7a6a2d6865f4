//! The oracles of the operations on bags: permuting and bucketising.

use schema::JaggedTensor;

/// Returns a tensor with one key, whose bag `i` has the ids and weights of the input's bag
/// `sources[i]`.
#[must_use]
pub fn permute(jagged: &JaggedTensor, sources: &[u32]) -> JaggedTensor {
    let range = |&bag: &u32| jagged.offsets[bag as usize]..jagged.offsets[bag as usize + 1];
    let lengths: Vec<usize> = sources.iter().map(|bag| range(bag).len()).collect();
    let values = sources.iter().flat_map(|bag| jagged.values[range(bag)].to_vec()).collect();
    let weights = jagged.weights.as_ref().map(|weights| {
        sources.iter().flat_map(|bag| weights[range(bag)].to_vec()).collect::<Vec<f32>>()
    });
    JaggedTensor { weights, ..JaggedTensor::from_lengths(1, &lengths, values) }
}

/// Groups the ids of every bag by the shard that holds their rows, with `blocks[key]` rows per
/// shard. Returns bags `[shards, features, batch]`, and the previous position of each id. The ids
/// are relative to their shard and keep their order.
#[must_use]
pub fn bucketise(jagged: &JaggedTensor, blocks: &[u64], shards: usize) -> (JaggedTensor, Vec<u32>) {
    let (mut lengths, mut values, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    for shard in 0..shards as u64 {
        for (key, &block) in blocks.iter().enumerate() {
            for sample in 0..jagged.batch_size {
                let own = |&i: &usize| jagged.values[i] as u64 / block == shard;
                let kept: Vec<usize> = jagged.bag(key, sample).filter(own).collect();
                lengths.push(kept.len());
                values.extend(kept.iter().map(|&i| (jagged.values[i] as u64 % block) as i64));
                positions.extend(kept.iter().map(|&i| i as u32));
            }
        }
    }
    let weights = jagged
        .weights
        .as_ref()
        .map(|weights| positions.iter().map(|&i| weights[i as usize]).collect::<Vec<f32>>());
    let features = shards * jagged.features;
    let jagged = JaggedTensor::from_lengths(features, &lengths, values);
    (JaggedTensor { weights, ..jagged }, positions)
}
