//! Tests that the emulator detects faults, with small kernels that have one error each.

use device::cuda::{
    BlockOrder, Checks, Driver, DriverError, EventPurpose, FaultKind, Grid, H100_SHARED_BYTES,
    KernelArguments, KernelSource,
};

use super::{Bench, benches, emulation, has_compiler};

/// Runs the kernel in `text` on two blocks of 96 threads, with a buffer of 64 floats. Returns the
/// error and the contents of the buffer.
pub fn run(
    bench: &Bench,
    text: &'static str,
    shared_bytes: usize,
) -> (Option<DriverError>, Vec<f32>) {
    let buffer = bench.put(&[0.0f32; 64]);
    let result = (|| {
        let source = KernelSource { name: "cuda/mistake.cu", text };
        let kernel = bench.driver.module(source)?.kernel("mistake")?;
        let grid = Grid { blocks: [2, 1], threads: 96, shared_bytes };
        bench.stream.launch(&kernel, grid, &KernelArguments::new().buffer(&buffer).u32(64).u32(0))
    })();
    (result.err(), bench.get(&buffer, 64))
}

fn checked(checks: Checks) -> Option<Bench> {
    has_compiler()
        .then(|| Bench::new(Driver::emulated(emulation(BlockOrder::Ascending, checks)), "emulator"))
}

#[track_caller]
fn expect(checks: Checks, text: &'static str, line: u32, test: impl Fn(&FaultKind) -> bool) {
    let Some(bench) = checked(checks) else { return };
    match run(&bench, text, 0).0 {
        Some(DriverError::Fault(fault)) => {
            assert!(test(&fault.kind), "{fault}");
            assert_eq!(fault.kernel, "mistake", "{fault}");
            assert!(line == 0 || fault.place.line == line, "expected line {line}: {fault}");
            let text = fault.to_string();
            assert!(text.contains("block ") && text.contains("thread "), "{text}");
        }
        other => panic!("expected a fault, got {other:?}"),
    }
}

#[test]
fn a_store_past_a_buffer_names_its_line() {
    let text = kernel!("u32 i = threadIdx.x;\n((float *)a.out)[i] = 1.0f;\n");
    expect(Checks::Every, text, 4, |kind| {
        matches!(kind, FaultKind::Outside { access: "store", bytes: 4, after: Some((0, 256)) })
    });
    // If single accesses are not checked, the red zone must reveal the store.
    expect(Checks::Few, text, 0, |kind| matches!(kind, FaultKind::RedZone { bytes: 256 }));
}

#[test]
fn a_load_past_a_buffer_is_found() {
    let text = kernel!("u32 i = threadIdx.x;\n(void)((volatile float *)a.out)[i];\n");
    expect(Checks::Every, text, 4, |kind| {
        matches!(kind, FaultKind::Outside { access: "load", bytes: 4, after: Some((0, 256)) })
    });
}

#[test]
fn a_missing_barrier_is_a_race() {
    let text = kernel!(
        "__shared__ float tile[96];\ntile[threadIdx.x] = 1.0f;\n\
         float v = tile[95 - threadIdx.x];\nif (threadIdx.x == 0) ((float *)a.out)[blockIdx.x] = v;\n"
    );
    expect(
        Checks::Every,
        text,
        4,
        |kind| matches!(kind, FaultKind::Race { other, .. } if other.line == 5),
    );
}

#[test]
fn two_blocks_that_write_one_place_race() {
    let text = kernel!("if (threadIdx.x == 0) ((float *)a.out)[0] = 1.0f;\n");
    expect(Checks::Every, text, 3, |kind| {
        matches!(kind, FaultKind::Race { block: Some(0), thread: Some(0), .. })
    });
}

#[test]
fn shuffles_order_no_memory() {
    let text = kernel!(
        "__shared__ u32 tile[96];\ntile[threadIdx.x] = 1;\n\
         u32 v = __shfl_xor_sync(ALL_LANES, 1u, 1);\nv += tile[threadIdx.x ^ 1];\n\
         if (threadIdx.x == 0) ((u32 *)a.out)[blockIdx.x] = v;\n"
    );
    expect(Checks::Every, text, 6, |kind| matches!(kind, FaultKind::Race { .. }));
    let Some(bench) = checked(Checks::Every) else { return };
    let synced = kernel!(
        "__shared__ u32 tile[96];\ntile[threadIdx.x] = 1;\n__syncwarp();\n\
         u32 v = tile[threadIdx.x ^ 1];\nif (threadIdx.x == 0) ((u32 *)a.out)[blockIdx.x] = v;\n"
    );
    assert_eq!(run(&bench, synced, 0).0, None);
}

#[test]
fn a_barrier_that_not_all_reach_names_line_and_thread() {
    let text = kernel!("if (threadIdx.x != 7) __syncthreads();\n");
    expect(Checks::Few, text, 3, |kind| matches!(kind, FaultKind::Barrier { missing: 7, at: 0 }));
    let text = kernel!("if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();\n");
    expect(Checks::Few, text, 4, |kind| matches!(kind, FaultKind::Barrier { missing: 32, at: 6 }));
}

#[test]
fn every_lane_of_a_mask_arrives_at_the_same_call() {
    let text = kernel!("if (threadIdx.x != 40) __ballot_sync(ALL_LANES, 1);\n");
    expect(Checks::Few, text, 3, |kind| {
        matches!(kind, FaultKind::LaneMissing { missing: 40, at: 0, .. })
    });
    let text = kernel!("__ballot_sync(0xffu, 1);\n");
    expect(Checks::Few, text, 3, |kind| matches!(kind, FaultKind::LaneNotNamed { lane: 8 }));
    let text = kernel!("if (threadIdx.x % 32 < 16)\n__syncwarp();\nelse\n__syncwarp();\n");
    expect(Checks::Few, text, 4, |kind| {
        matches!(kind, FaultKind::LaneMissing { missing: 16, at: 6, .. })
    });
}

#[test]
fn a_misaligned_access_is_found() {
    let text = kernel!("if (threadIdx.x == 0 && blockIdx.x == 0) *(float *)(a.out + 2) = 1.0f;\n");
    expect(Checks::Every, text, 3, |kind| {
        matches!(kind, FaultKind::Misaligned { access: "store", bytes: 4 })
    });
}

#[test]
fn shared_memory_is_poisoned_for_every_block() {
    let text = kernel!(
        "__shared__ u32 kept[96];\nu32 old = kept[threadIdx.x];\nkept[threadIdx.x] = 5;\n\
         if (threadIdx.x < 32) ((u32 *)a.out)[blockIdx.x * 32 + threadIdx.x] = old;\n"
    );
    for bench in benches() {
        let (error, values) = run(&bench, text, 0);
        assert_eq!(error, None);
        assert!(values.iter().all(|value| value.to_bits() == u32::MAX), "{}", bench.name);
    }
}

#[test]
fn uninitialized_memory_is_poisoned() {
    let Some(bench) = checked(Checks::Few) else { return };
    assert!(bench.get::<u32>(&bench.room::<u32>(9), 9).iter().all(|&word| word == u32::MAX));
    let dynamic = kernel!(
        "DYNAMIC_SHARED(u32, big);\nu32 old = big[threadIdx.x];\nbig[threadIdx.x] = 5;\n\
         if (threadIdx.x < 32) ((u32 *)a.out)[blockIdx.x * 32 + threadIdx.x] = old;\n"
    );
    let (error, values) = run(&bench, dynamic, 4 * 96);
    assert_eq!(error, None);
    assert!(values.iter().all(|value| value.to_bits() == u32::MAX));
    let local = kernel!(
        "u32 own[2];\nasm volatile(\"\" : \"+m\"(own));\n\
         if (threadIdx.x < 32) ((u32 *)a.out)[blockIdx.x * 32 + threadIdx.x] = own[1];\n"
    );
    // A device keeps the compiled kernel under the source's name, so each source needs a new
    // device.
    let (error, values) = run(&checked(Checks::Few).unwrap(), local, 0);
    assert_eq!(error, None);
    assert!(values.iter().all(|value| value.to_bits() == 0xfefe_fefe), "{values:?}");
}

#[test]
fn a_store_before_a_buffer_is_found() {
    let text = kernel!("if (global_thread() == 0) ((float *)a.out)[-1] = 1.0f;\n");
    expect(Checks::Few, text, 0, |kind| matches!(kind, FaultKind::RedZone { bytes: 256 }));
    expect(Checks::Every, text, 3, |kind| {
        matches!(kind, FaultKind::Outside { access: "store", bytes: 4, after: None })
    });
}

#[test]
fn a_thread_that_exceeds_its_stack_is_detected() {
    let text = "struct A { u64 out; u32 n, pad; };\n\
                __attribute__((noinline)) static void deep() {\n\
                volatile char own[1 << 16];\nfor (u32 i = 0; i < sizeof own; ++i) own[i] = 1;\n}\n\
                KERNEL(mistake, A, 128) {\nif (threadIdx.x == 95) deep();\n}\n";
    expect(Checks::Few, text, 0, |kind| matches!(kind, FaultKind::Stack));
}

#[test]
fn lanes_of_a_part_of_a_warp_exchange_among_themselves() {
    let text = kernel!(
        "const u32 lane = lane_of_thread();\nu32 v = 0;\n\
         if (lane < 8) v = __ballot_sync(0xffu, lane % 2);\n\
         else v = __shfl_down_sync(0xffffff00u, lane, 1);\n\
         if (threadIdx.x < 32) ((u32 *)a.out)[blockIdx.x * 32 + lane] = v;\n"
    );
    for bench in benches() {
        let (error, values) = run(&bench, text, 0);
        assert_eq!(error, None, "{}", bench.name);
        let expected = |lane: u32| if lane < 8 { 0xaa } else { 31.min(lane + 1) };
        let is_right = |(i, value): (usize, &f32)| value.to_bits() == expected(i as u32 % 32);
        assert!(values.iter().enumerate().all(is_right), "{}: {values:?}", bench.name);
    }
    let text = kernel!("if (lane_of_thread() < 8) __shfl_sync(0xffu, 1u, 9);\n");
    expect(Checks::Few, text, 3, |kind| matches!(kind, FaultKind::LaneNotNamed { lane: 9 }));
}

#[test]
fn launch_arguments_are_checked() {
    let Some(bench) = checked(Checks::Few) else { return };
    let text = kernel!("DYNAMIC_SHARED(float, big);\nbig[threadIdx.x] = 1.0f;\n");
    assert_eq!(run(&bench, text, 1024).0, None);
    let source = KernelSource { name: "cuda/mistake.cu", text };
    let module = bench.driver.module(source).unwrap();
    let missing = module.kernel("other").map(|_| ()).unwrap_err().to_string();
    assert_eq!(missing, "cuda/mistake.cu has no kernel \"other\"");
    let kernel = module.kernel("mistake").unwrap();
    let launch = |threads, arguments: &KernelArguments| {
        let grid = Grid { blocks: [1, 1], threads, shared_bytes: 1024 };
        bench.stream.launch(&kernel, grid, arguments).unwrap_err().to_string()
    };
    assert_eq!(
        launch(32, &KernelArguments::new().u64(0)),
        "kernel mistake: bytes of its arguments: expected 16, got 8"
    );
    assert_eq!(
        launch(256, &KernelArguments::new().u64(0).u32(0).u32(0)),
        "kernel mistake: threads of a block, at most: expected 128, got 256"
    );
    let buffer = bench.put(&[1.0f32; 4]);
    let error = bench.stream.upload(&buffer, 8, &[0; 16]).unwrap_err().to_string();
    assert_eq!(error, "upload: bytes, at most: expected 8, got 16");
}

#[test]
fn a_block_has_declared_and_dynamic_shared_memory_up_to_the_limit() {
    let limit = H100_SHARED_BYTES;
    let dynamic = kernel!("DYNAMIC_SHARED(float, big);\nbig[threadIdx.x] = 1.0f;\n");
    let both = kernel!(
        "__shared__ float own[96];\nDYNAMIC_SHARED(float, big);\n\
         own[threadIdx.x] = 2.0f;\n__syncthreads();\n\
         big[threadIdx.x] = own[95 - threadIdx.x];\n"
    );
    // A device keeps the compiled kernel under the source's name, so each source needs a new
    // device.
    for (text, declared) in [(dynamic, 0), (both, 4 * 96)] {
        let Some(bench) = checked(Checks::Every) else { return };
        assert_eq!(run(&bench, text, limit - declared).0, None);
        let more = run(&bench, text, limit - declared + 4).0.unwrap();
        let DriverError::Extent { of, expected, got, .. } = &more else { panic!("{more}") };
        assert_eq!((of.as_str(), *expected, *got), ("kernel mistake", limit, limit + 4), "{more}");
    }
}

#[test]
fn a_launch_with_more_blocks_than_a_gpu_has_is_refused() {
    let Some(bench) = checked(Checks::Few) else { return };
    let text = kernel!("(void)a;\n");
    let source = KernelSource { name: "cuda/mistake.cu", text };
    let kernel = bench.driver.module(source).unwrap().kernel("mistake").unwrap();
    let launch = |grid: Grid| {
        let arguments = KernelArguments::new().u64(0).u32(0).u32(0);
        bench.stream.launch(&kernel, grid, &arguments).map_err(|error| error.to_string())
    };
    // Truncated to 32 bits, 2³² + 1 blocks would be 1 block.
    assert_eq!(
        launch(Grid::over((1 << 32) + 1, 1, 32)).unwrap_err(),
        "kernel mistake: blocks along x, at most: expected 2147483647, got 4294967297"
    );
    let high = Grid { blocks: [1, 65_536], ..Grid::over(1, 1, 32) };
    assert_eq!(
        launch(high).unwrap_err(),
        "kernel mistake: blocks along y, at most: expected 65535, got 65536"
    );
    assert_eq!(launch(Grid { blocks: [1, 65_535], ..high }), Ok(()));
}

#[test]
fn a_source_that_does_not_compile_is_an_error_with_its_line() {
    let Some(bench) = checked(Checks::Few) else { return };
    let text = kernel!("float x = ;\n");
    let Some(DriverError::Compile { log, .. }) = run(&bench, text, 0).0 else {
        panic!("expected an error of the compiler")
    };
    assert!(log.contains("cuda/mistake.cu:3"), "{log}");
}

#[test]
fn a_missing_gpu_is_an_error() {
    let error = Driver::cuda(0, super::stub_library::options(&std::env::temp_dir())).map(|_| ());
    if let Err(error) = error {
        let text = error.to_string();
        let known =
            text.starts_with("no GPU driver") || text.contains("cuda:0") || text.contains("cu");
        assert!(known, "{text}");
    }
}

#[test]
fn pinned_memory_comes_back_after_its_copy() {
    let Some(bench) = checked(Checks::Few) else { return };
    let buffer = bench.put(&[0u8; 8]);
    let mut pinned = bench.driver.pinned(8).unwrap();
    pinned.bytes_mut().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let event = bench.driver.event(EventPurpose::Order).unwrap();
    let flight = bench.stream.upload_pinned(pinned, event, &[(0..6, &buffer)]).unwrap();
    let (pinned, _) = flight.wait().unwrap();
    assert_eq!(pinned.bytes()[7], 8);
    assert_eq!(bench.get::<u8>(&buffer, 8), [1, 2, 3, 4, 5, 6, 0, 0]);
}
