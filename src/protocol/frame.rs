//! The bytes around a message: WebSocket frame headers and SSE fields.
//!
//! Only what the server sends is written here: unmasked, unfragmented frames (RFC 6455, section 5.2).
//! What clients send is judged by tungstenite in `lane`.

use super::close::CloseReason;

/// Room for the longest server header: two bytes and a 64-bit length.
pub const MAX_HEADER: usize = 10;

const FIN_TEXT: u8 = 0x81;
const FIN_CLOSE: u8 = 0x88;

/// The header of an unmasked text frame, and how many of its bytes are used.
pub fn text_header(payload: usize) -> ([u8; MAX_HEADER], usize) {
    let mut header = [0; MAX_HEADER];
    header[0] = FIN_TEXT;
    match payload {
        0..=125 => {
            header[1] = payload as u8;
            (header, 2)
        }
        126..=0xffff => {
            header[1] = 126;
            header[2..4].copy_from_slice(&(payload as u16).to_be_bytes());
            (header, 4)
        }
        _ => {
            header[1] = 127;
            header[2..10].copy_from_slice(&(payload as u64).to_be_bytes());
            (header, 10)
        }
    }
}

/// Appends a text frame.
pub fn push_text(out: &mut Vec<u8>, payload: &[u8]) {
    let (header, n) = text_header(payload.len());
    out.extend_from_slice(&header[..n]);
    out.extend_from_slice(payload);
}

/// Appends a close frame with the reason's code and text.
pub fn push_close(out: &mut Vec<u8>, reason: CloseReason) {
    let text = reason.text().as_bytes();
    out.extend_from_slice(&[FIN_CLOSE, 2 + text.len() as u8]);
    out.extend_from_slice(&reason.code().to_be_bytes());
    out.extend_from_slice(text);
}

/// Appends one SSE event with a name. `data` must be JSON on one line, which `server` guarantees.
pub fn push_sse_event(out: &mut Vec<u8>, name: &str, data: &[u8]) {
    for part in [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

/// Starts an HTTP/1.1 chunk whose length isn't known yet and gives the place to finish it at.
pub fn begin_chunk(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(b"00000000\r\n");
    at
}

/// Finishes the chunk that [`begin_chunk`] started at `at`; an empty one is taken back, because a
/// chunk of length zero would end the body.
pub fn end_chunk(out: &mut Vec<u8>, at: usize) {
    let body = out.len() - at - 10;
    if body == 0 {
        out.truncate(at);
        return;
    }
    let digits = format!("{body:08x}");
    out[at..at + 8].copy_from_slice(digits.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The chunk that ends an HTTP/1.1 body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_takes_the_shortest_form() {
        for (len, expected) in [(0, 2), (125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            assert_eq!(text_header(len).1, expected, "{len}");
        }
        assert_eq!(text_header(126).0[..4], [0x81, 126, 0, 126]);
    }

    #[test]
    fn an_empty_chunk_leaves_no_trace() {
        let mut out = b"x".to_vec();
        let at = begin_chunk(&mut out);
        end_chunk(&mut out, at);
        assert_eq!(out, b"x");
        let at = begin_chunk(&mut out);
        out.extend_from_slice(b"hello");
        end_chunk(&mut out, at);
        assert_eq!(out, b"x00000005\r\nhello\r\n");
    }
}
