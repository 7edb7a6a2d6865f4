use trace::store::NewSlice;

use super::*;

fn class(category: &str, name: &str) -> WorkClass {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new(category, name, (0, 7), (0, 10)));
    Classifier::new(ClassRule::Category).classes(&trace, &[0])[0]
}

#[test]
fn copies_are_memory_whoever_makes_them() {
    assert_eq!(class("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)"), WorkClass::Memory);
    assert_eq!(class("mtia_ccp_events", "dma_request"), WorkClass::Memory);
    assert_eq!(class("mtia_ccp_events", "pe_exe"), WorkClass::Compute);
    assert_eq!(
        class("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        WorkClass::Communication
    );
}
