//! Reads the files that a configuration names, and is one of.
//!
//! Invariant: a wrong name, of a device or a log, ends in an error and not in all of the memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longest file in bytes. A bundle of every public certificate authority has about 250,000, everything else a few
/// thousand.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file.
///
/// # Errors
/// It can't be read, or is longer than anything that belongs there.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("it is longer than {} KiB; is it the right file?", MAX_BYTES / 1024);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// [`read`] for a file of text.
///
/// # Errors
/// As for [`read`], and if it isn't UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_up_to_a_bound() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for (n, is_read) in [(0, true), (MAX_BYTES, true), (MAX_BYTES + 1, false)] {
            std::fs::write(file.path(), vec![b'x'; n as usize]).expect("written");
            let read = read_text(file.path());
            assert_eq!(read.as_ref().ok().map(String::len), is_read.then_some(n as usize), "{n} bytes");
        }
        let endless = read(Path::new("/dev/zero")).expect_err("it has no end");
        assert_eq!(endless.to_string(), "it is longer than 1024 KiB; is it the right file?");
        std::fs::write(file.path(), [0xff]).expect("written");
        assert_eq!(read_text(file.path()).expect_err("no text").to_string(), "it is not UTF-8");
    }
}
