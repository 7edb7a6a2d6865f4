use super::*;

#[test]
fn copy_directions_are_parsed_in_every_spelling() {
    for (name, expected) in [
        ("Memcpy DtoH (Device -> Pageable)", Direction::ToHost),
        ("Memcpy DtoH (Device -> Host)", Direction::ToHost),
        ("CopyDeviceToHost", Direction::ToHost),
        ("Memcpy HtoD (Pinned -> Device)", Direction::ToDevice),
        ("CopyHostToDevice", Direction::ToDevice),
        ("Memcpy DtoD (Device -> Device)", Direction::OnDevice),
        ("CopyDeviceToDevice", Direction::OnDevice),
        ("Memcpy PtoP (Device -> Device)", Direction::Other),
        ("dma_request", Direction::Other),
    ] {
        assert_eq!(direction(name), expected, "{name}");
    }
}

#[test]
fn waits_of_every_vendor_are_waits() {
    for (name, expected) in [
        ("cudaStreamSynchronize", CallKind::StreamSync),
        ("hipDeviceSynchronize", CallKind::DeviceSync),
        ("synchronizeStream", CallKind::StreamSync),
        ("hipMemcpyWithStream", CallKind::BlockingCopy),
        ("gif_merge", CallKind::Execute),
    ] {
        assert_eq!(classify_call(name), expected, "{name}");
        assert_eq!(is_synchronization(name), name.to_lowercase().contains("synchronize"), "{name}");
    }
}
