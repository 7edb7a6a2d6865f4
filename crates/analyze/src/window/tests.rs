use trace::store::NewSlice;

use super::*;

#[test]
fn calls_that_put_work_on_a_device_are_launches() {
    let launches = [
        "cudaLaunchKernel",
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernel_ptsz_v7000",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "cudaGraphLaunch_v10000",
        "cudaMemcpyAsync",
        "hipExtModuleLaunchKernel",
        "hipMemcpyWithStream",
    ];
    assert!(launches.iter().all(|call| is_launch(call)));
    let others = [
        "cudaLaunchHostFunc",
        "cudaStreamSynchronize",
        "cudaMalloc",
        "cudaGraphAddMemcpyNode",
        "aten::mm",
        "",
    ];
    assert!(!others.iter().any(|call| is_launch(call)));
}

/// Starts in hours.
fn starts(base: i64, hours: &[i64]) -> Trace {
    const HOUR: i64 = 3_600_000_000_000;
    let mut trace = Trace::default();
    trace.header.base_time_ns = base;
    for hour in hours {
        let start = base + hour * HOUR;
        trace.push(&NewSlice::new("kernel", "gemm", (0, 7), (start, start + 5)));
    }
    trace
}

#[test]
fn time_zero_is_lost_only_if_far_from_everything_else() {
    assert_eq!(lost_start(&starts(0, &[0, 1])), None);
    assert_eq!(lost_start(&starts(0, &[0, 100, 101])), Some(0));
    assert_eq!(lost_start(&starts(77, &[0, 100])), Some(77));
    assert_eq!(lost_start(&starts(0, &[0])), None);
    let trace = starts(77, &[0, 100]);
    assert_eq!(recorded(&trace).map(|(start, end)| end - start), Some(5));
    assert_eq!(recorded(&Trace::default()), None);
}
