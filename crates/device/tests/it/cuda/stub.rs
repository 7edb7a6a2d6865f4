//! Tests of the calls to NVIDIA's driver, which a stub of the driver's library records. The test
//! starts itself again with the stub in the linker's search path, because a process searches for
//! a library only once.

use std::path::{Path, PathBuf};

use device::cuda::{
    Accuracy, CudaOptions, Driver, DriverError, EventPurpose, Grid, KernelArguments, Stream,
};
use device::ops::embedding_backward::cuda::{
    DeviceGradient, EmbeddingBackward, Workspace, WorkspaceShape,
};
use device::ops::embedding_backward::{Factors, TileOrigin};
use device::ops::embedding_forward::cuda::{
    DeviceLookup, DeviceTile, EmbeddingForward, NO_BAD_ID, slot_bytes, tile_bytes,
};
use device::ops::gemm::cuda::{Epilogue, Gemm, Join, LinearShape, Operand, ProductTarget};
use device::ops::{Slot, SlotOutput};
use schema::{DataType, Precision};

use super::Bench;
use super::stub_library::{Libraries, calls, options};

/// Returns the device of the stub in a child process that was started for it.
fn stub() -> Option<Bench> {
    let log = PathBuf::from(std::env::var_os("ROWMILL_STUB")?);
    let driver = Driver::cuda(0, options(log.parent().unwrap())).unwrap();
    Some(Bench::new(driver, "stub"))
}

#[test]
fn every_call_reaches_the_driver_on_its_stream() {
    let Some(calls) = calls("cuda::stub::calls_child", Libraries::Driver, &[]) else { return };
    let expected = [
        "cuInit",
        "cuStreamCreate 1",
        "cuModuleLoadData",
        "cuMemAlloc 8",
        "cuMemcpyHtoDAsync 8 stream 0x1",
        "cuLaunchKernel sigmoid [3 1 1] [256 1 1] 64 stream 0x1 07000000000000000900000000000000",
        "cuFuncSetAttribute sigmoid 8 65536",
        "cuLaunchKernel sigmoid [1 1 1] [256 1 1] 65536 stream 0x1 ",
        "cuLaunchKernel sigmoid [1 1 1] [256 1 1] 65536 stream 0x1 ",
        "cuMemsetD8Async 8 stream 0x1",
        "cuEventCreate 2",
        "cuEventRecord stream 0x1",
        "cuStreamWaitEvent stream 0x1",
        "cuMemcpyDtoHAsync 8 stream 0x1",
        "cuStreamSynchronize stream 0x1",
        "cuInit",
        "cuEventDestroy",
        "cuMemFree",
        "cuStreamDestroy",
    ];
    assert_eq!(calls, expected);
}

#[test]
fn calls_child() {
    let Some(bench) = stub() else { return };
    let Bench { driver, stream, .. } = &bench;
    assert_eq!((driver.name().as_str(), driver.memory()), ("stub", Ok(Some([1000, 2000]))));
    let module = driver.module(device::ops::activation::cuda::SOURCE).unwrap();
    let missing = module.kernel("missing").map(|_| ()).unwrap_err();
    assert!(matches!(missing, DriverError::NoKernel { .. }), "{missing}");
    let kernel = module.kernel("sigmoid").unwrap();
    let buffer = bench.put(&[7u64]);
    let grid = Grid { shared_bytes: 64, ..Grid::over(700, 256, 256) };
    stream.launch(&kernel, grid, &KernelArguments::new().u32(7).u64(9)).unwrap();
    // More shared memory than the default must be requested only once per kernel.
    let large = Grid { shared_bytes: 64 << 10, ..Grid::over(1, 256, 256) };
    stream.launch(&kernel, large, &KernelArguments::new()).unwrap();
    stream.launch(&kernel, large, &KernelArguments::new()).unwrap();
    let excessive = Grid { shared_bytes: driver.shared_limit() + 1, ..large };
    let error = stream.launch(&kernel, excessive, &KernelArguments::new()).unwrap_err().to_string();
    let what = "bytes of shared memory of a block, at most";
    assert_eq!(error, format!("kernel sigmoid: {what}: expected 232448, got 232449"));
    stream.fill(&buffer, 3).unwrap();
    let event = driver.event(EventPurpose::Order).unwrap();
    stream.record(&event).unwrap();
    stream.wait(&event).unwrap();
    assert_eq!(bench.get::<u8>(&buffer, 8), [3; 8]);
    let full = driver.alloc(1 << 41).map(|_| ()).unwrap_err();
    let expected = DriverError::OutOfMemory { bytes: 1 << 41, free: 1000, total: 2000 };
    assert_eq!(full, expected);
    let absent = Driver::cuda(1, options(Path::new(""))).map(|_| ()).unwrap_err().to_string();
    assert_eq!(absent, "device cuda:1: the driver offers 1 devices");
}

/// Events must measure times both with a driver that has the second version of the function and
/// with an earlier driver.
#[test]
fn events_for_timing_measure_with_old_and_new_drivers() {
    for flags in [&[][..], &["-DOLD_DRIVER"]] {
        let Some(calls) = calls("cuda::stub::timing_child", Libraries::Driver, flags) else {
            return;
        };
        let created = calls.iter().filter(|call| call.starts_with("cuEventCreate"));
        let expected = ["cuEventCreate 0", "cuEventCreate 0", "cuEventCreate 2"];
        assert!(created.eq(&expected), "{calls:?}");
    }
}

#[test]
fn timing_child() {
    let Some(bench) = stub() else { return };
    let event = |purpose| bench.driver.event(purpose).unwrap();
    let [begin, end] = [(); 2].map(|()| event(EventPurpose::Timing));
    bench.stream.record(&begin).unwrap();
    bench.stream.record(&end).unwrap();
    assert_eq!(begin.elapsed_ms(&end), Ok(0.25));
    let order = event(EventPurpose::Order);
    bench.stream.record(&order).unwrap();
    assert!(matches!(begin.elapsed_ms(&order), Err(DriverError::Call { code: 400, .. })));
}

/// From the launch of the kernel `faulty` on, the stub's device fails as a GPU does: each later
/// call reports the error.
#[test]
fn synchronous_mode_names_the_kernel_that_failed() {
    calls("cuda::stub::fault_child", Libraries::Driver, &[]);
}

#[test]
fn fault_child() {
    let Some(Bench { driver, .. }) = stub() else { return };
    let log = PathBuf::from(std::env::var_os("ROWMILL_STUB").unwrap());
    let launch = |driver: &Driver, names: [&'static str; 2]| {
        let stream = driver.stream().unwrap();
        let module = driver.module(device::ops::activation::cuda::SOURCE).unwrap();
        for name in names {
            let kernel = module.kernel(name).unwrap();
            stream.launch(&kernel, Grid::over(1, 1, 1), &KernelArguments::new().u32(7))?;
        }
        stream.synchronize()
    };
    let later = launch(&driver, ["faulty", "sigmoid"]).unwrap_err().to_string();
    let expected = "cuLaunchKernel: as the stub was told (code 700); an earlier kernel or copy \
                    failed: set ROWMILL_CUDA_SYNC=1 to learn which";
    assert_eq!(later, expected);
    let options = CudaOptions { synchronous: true, ..options(log.parent().unwrap()) };
    let driver = Driver::cuda(0, options).unwrap();
    let named = launch(&driver, ["sigmoid", "faulty"]).unwrap_err().to_string();
    assert_eq!(named, "kernel faulty: cuStreamSynchronize: as the stub was told (code 700)");
    // If the driver rejects a launch, the error must name the launched kernel in both modes.
    let Bench { driver, .. } = stub().unwrap();
    let refused = launch(&driver, ["refused", "sigmoid"]).unwrap_err().to_string();
    assert_eq!(refused, "kernel refused: cuLaunchKernel: as the stub was told (code 1)");
}

/// cuBLASLt computes the three products of a layer in f32, TF32 and bf16. The plain kernel
/// computes products for which cuBLASLt has no algorithm, and products on a stream that was not
/// prepared.
#[test]
fn products_are_computed_by_the_library() {
    let libraries = Libraries::DriverAndBlas;
    let Some(calls) = calls("cuda::stub::products_child", libraries, &[]) else { return };
    let kept = |call: &&String| call.starts_with("cublas") || call.starts_with("cuLaunch");
    let short = |call: &String| {
        // Only the name of a launched kernel is compared, because addresses differ from run to
        // run.
        let words = if call.starts_with("cuLaunch") { 2 } else { 99 };
        call.split(' ').take(words).collect::<Vec<_>>().join(" ")
    };
    let got: Vec<String> = calls.iter().filter(kept).map(short).collect();
    let heuristic = "cublasLtMatmulAlgoGetHeuristic workspace 33554432 alignments 16 16 16 16";
    let (f32, tf32, end) =
        ("compute 68 scale 0", "compute 77 scale 0", "workspace 4096 stream 0x1");
    // The products are y = relu(x Wᵀ + bias) with B 5, N 3, K 7, then dX += dY W, and then dW =
    // dYᵀ X.
    let products = |compute: &str, of: u32, bias_epilogue: &str| {
        [
            format!(
                "cublasLtMatmul {compute} transposed 1 0 {bias_epilogue} bias 1 \
                 [7 3] type {of} step 7 [7 5] type {of} step 7 [3 5] type 0 step 3 \
                 alpha 1 beta 0 {end}"
            ),
            format!(
                "cublasLtMatmul {compute} transposed 0 0 epilogue 1 bias 0 \
                 [7 3] type {of} step 7 [3 5] type {of} step 3 [7 5] type {of} step 7 \
                 alpha 1 beta 1 {end}"
            ),
            format!(
                "cublasLtMatmul {compute} transposed 0 1 epilogue 1 bias 0 \
                 [7 5] type {of} step 7 [3 5] type {of} step 3 [7 3] type 0 step 7 \
                 alpha 1 beta 0 {end}"
            ),
        ]
    };
    let mut expected = Vec::new();
    for (compute, of) in [(f32, 0), (tf32, 0), (f32, 14)] {
        expected.push("cublasLtCreate".to_owned());
        for (i, product) in products(compute, of, "epilogue 6").into_iter().enumerate() {
            // The first product is run with two biases, each of which needs its own plan.
            for _ in 0..if i == 0 { 2 } else { 1 } {
                expected.extend([heuristic.to_owned(), product.clone()]);
                match (i, of) {
                    // cuBLASLt adds an f32 bias only to an f32 result, which is rounded
                    // afterwards.
                    (0, 14) => expected.push("cuLaunchKernel round_bf16".to_owned()),
                    (1, _) => expected.push("cuLaunchKernel mask_product".to_owned()),
                    _ => {}
                }
            }
        }
        // The second call of this product reuses its plan, so no heuristic is queried.
        expected.push(products(compute, of, "epilogue 6")[2].clone());
        expected.push(heuristic.to_owned());
        expected.extend(["cuLaunchKernel gemm".to_owned(), "cuLaunchKernel gemm".to_owned()]);
        expected.push("cublasLtDestroy".to_owned());
    }
    let got: Vec<String> = got.iter().map(|call| aligned(call)).collect();
    assert_eq!(got, expected, "{got:#?}");
}

/// Replaces the alignment in a recorded call by 16. The stub uses host memory, which is aligned
/// to 16 bytes and sometimes to more.
fn aligned(call: &str) -> String {
    let word = |word: &str| match word.parse::<u32>() {
        Ok(16 | 32 | 64 | 128 | 256) if call.contains("alignments") => "16".to_owned(),
        _ => word.to_owned(),
    };
    call.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn products_child() {
    let Some(bench) = stub() else { return };
    let Bench { driver, stream, .. } = &bench;
    let buffers: Vec<_> = (0..4).map(|_| bench.room::<f32>(200)).collect();
    for (accuracy, precision) in [
        (Accuracy::F32, Precision::F32),
        (Accuracy::Tf32, Precision::F32),
        (Accuracy::Tf32, Precision::Bf16),
    ] {
        let driver = driver.clone().with_accuracy(accuracy);
        let gemm = Gemm::load(&driver).unwrap().with_library(&driver).unwrap();
        assert_eq!(gemm.library_version().unwrap().to_string(), "13.1.0");
        gemm.prepare(stream).unwrap();
        let shape = LinearShape { b: 5, n: 3, k: 7 };
        let [x, weight, d_y, out] =
            [0, 1, 2, 3].map(|i| Operand { matrix: &buffers[i], precision });
        let y = ProductTarget { to: out, epilogue: Epilogue::Relu };
        for bias in [&buffers[2], &buffers[3]] {
            gemm.forward(stream, shape, [x, weight], Some(bias), y).unwrap();
        }
        let d_x = ProductTarget { to: out, epilogue: Epilogue::BeforeRelu(x) };
        gemm.backward_input(stream, shape, [d_y, weight], d_x, Join::Add).unwrap();
        let (factors, d_weight) = ([d_y, x], &buffers[3]);
        gemm.backward_weight(stream, shape, factors, d_weight).unwrap();
        gemm.backward_weight(stream, shape, factors, d_weight).unwrap();
        // The library has no algorithm for this size, which must be queried only once.
        let odd = LinearShape { k: 13, ..shape };
        gemm.backward_weight(stream, odd, factors, d_weight).unwrap();
        let other = driver.stream().unwrap();
        gemm.backward_weight(&other, shape, factors, d_weight).unwrap();
    }
}

/// Returns the offsets of bags with `len` ids each, for two keys and four samples.
fn offsets(len: u64) -> Vec<u64> {
    (0..=8).map(|bag| bag * len).collect()
}

#[test]
fn a_step_allocates_nothing_waits_for_nothing_and_is_the_same_for_every_batch() {
    let Some(calls) = calls("cuda::stub::steps_child", Libraries::Driver, &[]) else { return };
    let steps: Vec<&[String]> =
        calls.split(|call| call.starts_with("cuMemsetD8Async 1 ")).skip(1).collect();
    assert_eq!(steps.len(), 4, "{calls:#?}");
    for step in &steps[..3] {
        let launches = step.iter().filter(|call| call.starts_with("cuLaunchKernel")).count();
        assert!(launches > 10, "{step:#?}");
        for call in *step {
            let fits = call.starts_with("cuLaunchKernel") || call.starts_with("cuMemcpyHtoDAsync");
            assert!(fits, "expected launches and uploads, got {call}");
        }
        let launches = |step: &[String]| -> Vec<String> {
            step.iter().filter(|call| call.starts_with("cuLaunchKernel")).cloned().collect()
        };
        assert_eq!(launches(step), launches(steps[0]));
    }
}

#[test]
fn steps_child() {
    let Some(bench) = stub() else { return };
    let (weights, mark) = (bench.room::<f32>(100 * 8), bench.room::<u8>(1));
    let tile = DeviceTile {
        weights: &weights,
        state: None,
        rows: 100,
        dim: 8,
        data_type: DataType::F32,
        origin: TileOrigin::default(),
    };
    let slots = [Slot { tile: 0, column: 0 }, Slot { tile: 0, column: 8 }];
    let tiles = bench.put(&tile_bytes(&[tile]));
    let slots = bench.put(&slot_bytes(&slots, &[8], SlotOutput::Pooled, &[]));
    let (ids, on_offsets) = (bench.room::<u64>(80), bench.room::<u64>(9));
    let lookup = DeviceLookup {
        tiles: &tiles,
        slots: &slots,
        ids: &ids,
        id_bytes: 8,
        offsets: &on_offsets,
        weights: None,
        bag_scales: None,
        features: 2,
        batch_size: 4,
        widest: 8,
    };
    let (out, gradient) = (bench.room::<f32>(64), bench.room::<f32>(64));
    let (rule, first_bad) = (bench.room::<u8>(48), bench.put(&[NO_BAD_ID]));
    let (stop, updated) = (bench.put(&[0u32]), bench.room::<u64>(3));
    let shape = WorkspaceShape {
        capacity: 80,
        rows: 100,
        tiles: 1,
        widest: 8,
        gradient: 64,
        factors: Factors::Absent,
    };
    let workspace = Workspace::new(&bench.driver, shape).unwrap();
    let forward = EmbeddingForward::load(&bench.driver).unwrap();
    let backward = EmbeddingBackward::load(&bench.driver).unwrap();
    let stream: &Stream = &bench.stream;
    // The batches have no ids, some ids, and as many ids as the buffers can hold.
    for len in [0, 3, 10] {
        stream.fill(&mark, 0).unwrap();
        let offsets = offsets(len);
        stream.upload(&ids, 0, &vec![0; 8 * *offsets.last().unwrap() as usize]).unwrap();
        stream.upload(&on_offsets, 0, bytemuck::cast_slice(&offsets)).unwrap();
        forward.launch(stream, &lookup, [&out, &first_bad]).unwrap();
        let gradient = DeviceGradient {
            gradient: &gradient,
            rule: &rule,
            first_bad: &first_bad,
            stop: &stop,
            updated: &updated,
        };
        backward.launch(stream, &lookup, &gradient, &workspace).unwrap();
    }
    stream.fill(&mark, 0).unwrap();
}
