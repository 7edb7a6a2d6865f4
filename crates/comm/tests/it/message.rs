//! Tests the encoding of message headers, and the texts of errors.

use comm::{ElementType, Error, MessageHeader, MessageOperation, Phase, Verb};

#[test]
fn headers_round_trip_and_damage_is_detected() {
    for count in [None, Some(0), Some(u64::MAX)] {
        let operation = MessageOperation {
            verb: Verb::Barrier,
            sequence: 3,
            step: u64::MAX - 1,
            plan: 0x0123_4567_89ab_cdef,
            element: ElementType::U8,
            count,
        };
        let header = MessageHeader { channel: 7, operation, phase: Phase::Second, len: 1 << 40 };
        let mut bytes = header.to_bytes();
        assert_eq!(MessageHeader::from_bytes(&bytes), Some(header));
        bytes[0] = 6;
        assert_eq!(MessageHeader::from_bytes(&bytes), None);
    }
}

/// Under MPICH with `-disable-auto-cleanup`, a rank ended by its launcher looks like one that was
/// killed, so the message must be true in both cases.
#[test]
fn a_lost_connection_is_reported_without_blaming_a_rank() {
    let text = Error::PeerLeft { rank: 1, verb: "barrier" }.to_string();
    assert_eq!(text, "the connection to rank 1 ended during barrier");
    for guess in ["left", "killed", "died", "crashed", "failed"] {
        assert!(!text.contains(guess), "{guess}: {text}");
    }
}
