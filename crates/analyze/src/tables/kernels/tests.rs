use trace::store::NewSlice;

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

#[test]
fn short_names_are_the_last_part_of_long_ones() {
    let names = [
        ("void at::native::(anonymous namespace)::Cat<float, 4>(float*, int)", "Cat"),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ),
        ("volta_sgemm_128x32_nt", "volta_sgemm_128x32_nt"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("std::enable_if<!(false), void>::type internal::gemv<int, true>(gemvArgs<int>)", "gemv"),
        ("void f<{lambda(int)#1}::operator()() const>(int)", "f"),
        (
            "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64>(T::Params)",
            "cutlass_80_simt_sgemm_128x64",
        ),
        ("void cutlass::device_kernel<at::cuda::detail::gemm<float> >(P)", "gemm"),
        ("Kernel(", "Kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("my own range", "my own range"),
        ("ядро<float>(x)", "ядро"),
        ("<<<>>>(", "<<<>>>("),
        ("::(", "::("),
    ];
    for (name, short) in names {
        assert_eq!(short_name(name), short, "{name}");
    }
}

#[test]
fn rows_of_a_name_are_one_and_shares_are_of_busy_and_window() {
    let mut trace = Trace::default();
    let shape = |grid, occupancy_pct| LaunchShape {
        grid: [grid, 1, 1],
        block: [32, 1, 1],
        blocks_per_sm: f32::NAN,
        occupancy_pct,
        ..LaunchShape::default()
    };
    for (name, stream, start, end, grid) in
        [("b", 7, 0, 10, 1), ("a", 8, 10, 40, 2), ("b", 9, 60, 80, 3), ("b", 7, 90, 100, 3)]
    {
        let row = trace.push(&NewSlice::new("kernel", name, (0, stream), (start, end)));
        trace.slices.launch_shape.push(row, shape(grid, grid as f32));
    }
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let rows = list_kernels(&scope);
    let plain: Vec<_> = rows.iter().map(|row| (&*row.name, row.count, row.total_ns)).collect();
    assert_eq!(plain, [("b", 3, 40), ("a", 1, 30)]);
    let b = &rows[0];
    assert_eq!((b.busy_pct, b.window_pct), (Some(57.1429), Some(40.0)));
    assert_eq!((&*b.streams, &*b.devices, b.shape_count), ("7 9", "0", 2));
    assert_eq!((b.grid.as_deref(), b.block.as_deref()), (Some("3x1x1"), Some("32x1x1")));
    assert_eq!((b.occupancy_pct, b.blocks_per_sm, b.bytes), (Some(2.5), None, None));
    assert_eq!(histograms(&scope).len(), 3);
}

#[test]
fn bytes_stop_at_the_greatest_integer() {
    let mut trace = Trace::default();
    for start in [0, 10] {
        let slice = NewSlice::new("gpu_memcpy", "Memcpy", (0, 7), (start, start + 5));
        let row = trace.push(&slice);
        trace.slices.bytes.push(row, u64::MAX);
    }
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    assert_eq!(list_kernels(&scope)[0].bytes, Some(u64::MAX));
}

#[test]
fn kernels_of_one_short_name_have_labels_of_their_own() {
    let add = "void vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)";
    let fill = "void vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)";
    assert_eq!(short_name(add), short_name(fill));
    let found = labels([add, "gemm", fill]);
    let expected = [
        "vectorized_elementwise_kernel [CUDAFunctor_add]",
        "gemm",
        "vectorized_elementwise_kernel [FillFunctor]",
    ];
    assert_eq!(found, expected);
    // Names that differ only near their end, or only in length, must get different labels too.
    let long = |end: &str| format!("void f<{}{end}>(int)", "x".repeat(60));
    let (one, other) = (long("1"), long("2"));
    let found = labels([one.as_str(), other.as_str(), "f"]);
    let mut distinct = found.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((distinct.len(), found[2].as_str()), (3, "f"), "{found:?}");
    assert!(found.iter().all(|label| label.chars().count() < 70), "{found:?}");
}

#[test]
fn a_table_shows_no_label_twice() {
    let mut trace = Trace::default();
    for (at, name) in ["void f<float>(int)", "void f<double>(int)", "gemm"].iter().enumerate() {
        let start = 10 * at as i64;
        trace.push(&NewSlice::new("kernel", name, (0, 7), (start, start + 5)));
    }
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let mut rows = list_kernels(&scope);
    distinguish(&mut rows);
    let mut short: Vec<&str> = rows.iter().map(|row| row.short_name.as_str()).collect();
    short.sort_unstable();
    assert_eq!(short, ["f [double]", "f [float]", "gemm"]);
}
