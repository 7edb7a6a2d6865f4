use super::*;

#[test]
fn names_show_type_and_matrix_units_of_every_vendor() {
    use DataType::{BFloat16, Float16, Float32, Float64};
    for (name, of, has_units) in [
        ("volta_sgemm_128x32_nt", Some(Float32), false),
        ("volta_scudnn_128x64_relu_interior_nn_v1", Some(Float32), false),
        ("void implicit_convolve_sgemm<float, float, 1024, 6>", Some(Float32), false),
        ("cudnn::cnn::wgrad_alg0_engine<float, 128, 6>", Some(Float32), false),
        ("cutlass::Kernel<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>", Some(Float32), false),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1", None, true),
        ("volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn", Some(Float16), true),
        ("volta_hgemm_64x64_nn", Some(Float16), false),
        ("volta_dgemm_128x64_nn", Some(Float64), false),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_tn_align1", Some(Float64), true),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64", Some(Float32), false),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", Some(Float32), true),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Some(BFloat16), true),
        ("nvjet_tst_128x64_64x11_2x2_h_bz_coopA_NNT", None, true),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN", Some(BFloat16), true),
        (
            "Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x288x64_MI16x16x1_SN",
            Some(BFloat16),
            true,
        ),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", Some(Float32), true),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", Some(Float32), false),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x16_SE_K1", Some(Float16), false),
        ("Cijk_Ailk_Bljk_DB_MT32x32x8_SE_K1", Some(Float64), false),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", Some(BFloat16), true),
        ("ck::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle", None, true),
    ] {
        assert!(is_named(name), "{name}");
        assert_eq!((data_type(name, None), uses_matrix_units(name)), (of, has_units), "{name}");
    }
}

#[test]
fn the_type_comes_from_tensors_if_the_name_lacks_it() {
    let tensors = |of: &str| Tensors {
        dims: vec![vec![8, 64], vec![], vec![64, 32]],
        types: vec!["float".to_owned(), "Scalar".to_owned(), of.to_owned()],
    };
    let name = "cutlass_80_simt_gemm_128x128_8x4_nn_align1";
    assert_eq!(data_type(name, Some(&tensors("c10::Half"))), Some(DataType::Float16));
    assert_eq!(data_type(name, Some(&tensors("double"))), Some(DataType::Float64));
    assert_eq!(data_type(name, Some(&tensors("c10::complex<float>"))), None);
}

#[test]
fn products_with_vectors_gain_nothing_from_matrix_units() {
    for name in [
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4>",
        "void gemmk1_kernel<int, float, 256, 5>",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9>",
        "void conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float>",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1",
    ] {
        assert!(is_thin(name), "{name}");
    }
    assert!(!is_thin("volta_sgemm_128x32_nt"));
    assert!(!is_named("void fbgemm_gpu::permute_indices_weights_kernel<true, int, float>"));
}
