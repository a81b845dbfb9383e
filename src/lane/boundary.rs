//! Where messages end in the bytes that a WebSocket client sends.
//!
//! Between two messages a client needs no parser and no buffer, and most clients are there all day. tungstenite
//! doesn't say whether it holds part of a message, so its own header parser is run over the bytes that it is given.
//!
//! Not here: judging frames (`lane::frames`).

use std::io::Cursor;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// The longest header of a frame (RFC 6455, 5.2).
const MAX_HEADER: usize = 14;

/// See the module.
#[derive(Default, Debug)]
pub struct Boundary {
    /// The beginning of a header that isn't whole yet.
    header: [u8; MAX_HEADER],
    n_header: u8,
    /// Bytes of the present frame's payload that are still to come.
    n_payload: u64,
    /// Fragments of a message are still to come, or what came was no frame, and the session is about to end.
    within: bool,
}

impl Boundary {
    /// Whether everything that came is whole messages.
    pub fn is_between_messages(&self) -> bool {
        !self.within && self.n_header == 0 && self.n_payload == 0
    }

    /// The next bytes of the client.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        loop {
            let n = usize::try_from(self.n_payload).unwrap_or(usize::MAX).min(bytes.len());
            self.n_payload -= n as u64;
            bytes = &bytes[n..];
            let Some((&byte, rest)) = bytes.split_first() else { return };
            bytes = rest;
            self.push_header(byte);
        }
    }

    fn push_header(&mut self, byte: u8) {
        let n = usize::from(self.n_header);
        if n == MAX_HEADER {
            return;
        }
        self.header[n] = byte;
        self.n_header += 1;
        match FrameHeader::parse(&mut Cursor::new(&self.header[..=n])) {
            Ok(None) => {}
            Ok(Some((header, n_payload))) => {
                self.n_header = 0;
                self.n_payload = n_payload;
                if matches!(header.opcode, OpCode::Data(Data::Text | Data::Binary | Data::Continue)) {
                    self.within = !header.is_final;
                }
            }
            Err(_) => self.within = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::Control;

    fn frame(payload: Vec<u8>, opcode: OpCode, is_final: bool) -> Vec<u8> {
        let header = FrameHeader { is_final, opcode, mask: Some([1, 2, 3, 4]), ..FrameHeader::default() };
        let frame = Frame::from_payload(header, payload.into());
        let mut bytes = Vec::new();
        frame.format(&mut bytes).expect("a vector takes everything");
        bytes
    }

    fn message() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![0..3usize, 120..130usize, 65_530..65_540usize];
        (len, 1..4usize, any::<bool>()).prop_map(|(len, n_fragments, pinged)| {
            let mut bytes = Vec::new();
            for at in 0..n_fragments {
                let opcode = if at == 0 { Data::Text } else { Data::Continue };
                bytes.extend(frame(vec![b'x'; len], OpCode::Data(opcode), at + 1 == n_fragments));
                if pinged && at + 1 < n_fragments {
                    bytes.extend(frame(vec![b'p'; at], OpCode::Control(Control::Ping), true));
                }
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn it_is_between_messages_exactly_where_one_ends(
            messages in prop::collection::vec(message(), 1..6),
            piece in 1..100_000usize,
        ) {
            let mut ends = vec![0];
            let mut bytes = Vec::new();
            for message in messages {
                bytes.extend(message);
                ends.push(bytes.len());
            }
            let mut boundary = Boundary::default();
            let mut at = 0;
            for piece in bytes.chunks(piece) {
                boundary.advance(piece);
                at += piece.len();
                prop_assert_eq!(boundary.is_between_messages(), ends.contains(&at), "{} {:?}", at, ends);
            }
        }

        #[test]
        fn each_byte_of_its_own_is_the_same(message in message()) {
            let mut boundary = Boundary::default();
            let (last, rest) = message.split_last().expect("a frame has a header");
            for byte in rest {
                boundary.advance(&[*byte]);
                prop_assert!(!boundary.is_between_messages());
            }
            boundary.advance(&[*last]);
            prop_assert!(boundary.is_between_messages());
        }
    }

    #[test]
    fn what_is_no_frame_is_never_between_messages() {
        let mut boundary = Boundary::default();
        // Opcode 3 is reserved.
        boundary.advance(&[0x83, 0x80, 0, 0, 0, 0]);
        assert!(!boundary.is_between_messages());
        boundary.advance(&[0; 100]);
        assert!(!boundary.is_between_messages());
    }
}
