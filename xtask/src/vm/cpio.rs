//! An initramfs: a cpio archive in the 'newc' format (kernel:
//! Documentation/driver-api/early-userspace/buffer-format.rst).

/// `070701` and thirteen numbers of eight hexadecimal digits.
const MAGIC: &str = "070701";
const ALIGNMENT: usize = 4;
const TRAILER: &str = "TRAILER!!!";

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;

/// An archive being written. Paths have no leading slash; a folder precedes its contents.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, REGULAR, content);
    }

    pub(super) fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, EXECUTABLE, content);
    }

    /// Returns the whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        // inode, mode, owner, group, links, time, size, device of the file (2), device it is (2),
        // length of the name with its NUL, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend(MAGIC.bytes());
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_header_name_and_padding() {
        let mut archive = Archive::default();
        archive.file("a/b", b"hello");
        let header = "070701\
            00000001000081A4000000000000000000000001000000000000000500000000000000000000000000000000000000040000\
            0000";
        let mut expected = header.as_bytes().to_vec();
        expected.extend(b"a/b\0\0\0hello\0\0\0");
        assert_eq!(header.len(), 110);
        assert_eq!(archive.bytes, expected);
    }

    #[test]
    fn an_archive_ends_with_its_trailer() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.program("bin/x", b"#!");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches(MAGIC).count(), 3);
        assert!(text.contains("000041ED") && text.contains("000081ED"), "{text}");
        assert!(text.trim_end_matches('\0').ends_with(TRAILER));
    }
}
