use super::*;

#[test]
fn kernels_without_lookups_are_not_embeddings() {
    assert!(is_embedding("embedding_dense_backward"));
    assert!(is_embedding("split_embedding_codegen_forward_unweighted_kernel"));
    assert!(!is_embedding("void vllm::rotary_embedding_kernel<c10::BFloat16, true>"));
    assert!(!is_embedding("ampere_sgemm_128x64_tn"));
}
