//! Lists the built-in rules, of which each has a file of its own. A rule reads shared facts and
//! reports what wastes time. Pricing and sorting its findings belong to `findings`.

mod c01_pageable_copies;
mod c02_blocking_copies;
mod c03_unhidden_input;
mod c04_round_trip;
mod c05_data_movement;
mod c06_gradient_zeroing;
mod g01_memory_ceiling;
mod g02_fragmentation;
mod h01_host_bound;
mod h02_data_loading;
mod h03_periodic_stall;
mod h04_one_feeder;
mod h05_scalar_reads;
mod h06_device_sync;
mod h07_driver_memory;
mod h08_pinned_memory;
mod h09_event_polling;
mod h10_tensor_moved;
mod h11_indexing_loop;
mod h12_harmless_hotspots;
mod h13_unrecorded_host;
mod k01_few_blocks;
mod k02_coarse_threads;
mod k03_low_occupancy;
mod k04_wave_tail;
mod k05_slow_memory;
mod k06_tensor_cores_unused;
mod k07_misaligned_products;
mod k08_useless_bias;
mod k09_unfused_optimizer;
mod k10_separate_embeddings;
mod k11_serial_branches;
mod k12_layout_conversion;
mod k13_fusable_chain;
mod l01_tiny_kernels;
mod l02_copy_loop;
mod l03_graph_candidate;
mod l04_starved_queue;
mod l05_full_queue;
mod l06_slow_launches;
mod l07_kernel_gaps;
mod l08_stalled_queue;
mod m01_exposed_communication;
mod m02_exposed_input;
mod m03_repeated_metadata;
mod m04_small_collectives;
mod m05_low_bus_bandwidth;
mod m06_straggler;
mod m07_imbalance;
mod m08_network_skew;
mod m09_slow_backend;
mod m10_shared_stream;
mod m11_blocking_wait;
mod quality_rules;
mod wanted_shapes;

use super::rule::Rule;

pub use wanted_shapes::rows_with_shapes;

/// Iterates over all rules, sorted by group and id.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter()
}

/// The order of this list is also the order of reports and of `rowmill explain`.
static RULES: &[Rule] = &[
    quality_rules::Q01,
    quality_rules::Q02,
    quality_rules::Q03,
    quality_rules::Q04,
    quality_rules::Q05,
    quality_rules::Q06,
    quality_rules::Q07,
    quality_rules::Q08,
    quality_rules::Q09,
    quality_rules::Q10,
    l01_tiny_kernels::RULE,
    l02_copy_loop::RULE,
    l03_graph_candidate::RULE,
    l04_starved_queue::RULE,
    l05_full_queue::RULE,
    l06_slow_launches::RULE,
    l07_kernel_gaps::RULE,
    l08_stalled_queue::RULE,
    h01_host_bound::RULE,
    h02_data_loading::RULE,
    h03_periodic_stall::RULE,
    h04_one_feeder::RULE,
    h05_scalar_reads::RULE,
    h06_device_sync::RULE,
    h07_driver_memory::RULE,
    h08_pinned_memory::RULE,
    h09_event_polling::RULE,
    h10_tensor_moved::RULE,
    h11_indexing_loop::RULE,
    h12_harmless_hotspots::RULE,
    h13_unrecorded_host::RULE,
    c01_pageable_copies::RULE,
    c02_blocking_copies::RULE,
    c03_unhidden_input::RULE,
    c04_round_trip::RULE,
    c05_data_movement::RULE,
    c06_gradient_zeroing::RULE,
    m01_exposed_communication::RULE,
    m02_exposed_input::RULE,
    m03_repeated_metadata::RULE,
    m04_small_collectives::RULE,
    m05_low_bus_bandwidth::RULE,
    m06_straggler::RULE,
    m07_imbalance::RULE,
    m08_network_skew::RULE,
    m09_slow_backend::RULE,
    m10_shared_stream::RULE,
    m11_blocking_wait::RULE,
    g01_memory_ceiling::RULE,
    g02_fragmentation::RULE,
    k01_few_blocks::RULE,
    k02_coarse_threads::RULE,
    k03_low_occupancy::RULE,
    k04_wave_tail::RULE,
    k05_slow_memory::RULE,
    k06_tensor_cores_unused::RULE,
    k07_misaligned_products::RULE,
    k08_useless_bias::RULE,
    k09_unfused_optimizer::RULE,
    k10_separate_embeddings::RULE,
    k11_serial_branches::RULE,
    k12_layout_conversion::RULE,
    k13_fusable_chain::RULE,
];
