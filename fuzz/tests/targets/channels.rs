//! What a peer of a channel writes: handles, control messages, lines of the ring, immediates.

use barewire_channel::Handle;
use barewire_channel::handshake::message::{Message, VERSION, first_frame};
use barewire_channel::handshake::pairing::Pairing;
use barewire_channel::ring::{Announcement, Immediate, Label};
use bolero::check;

use crate::script::{Script, bytes_to};

#[test]
fn any_handle() {
    check!().with_generator(bytes_to(128)).for_each(|bytes| match Handle::from_bytes(bytes) {
        Ok(handle) => assert!(bytes.starts_with(&handle.to_bytes())),
        Err(error) => assert!(!error.to_string().is_empty()),
    });
}

#[test]
fn any_message_of_a_channel() {
    check!().with_generator(bytes_to(1500)).for_each(|bytes| {
        let Some((kind, body)) = bytes.split_first() else { return };
        let (kind, mut body) = (kind % 12, body.to_vec());
        let mut framed = vec![0; 4];
        if kind == 1 && body.len() > 1 {
            // Otherwise nearly every OFFER has another version.
            body[..2].copy_from_slice(&VERSION.to_le_bytes());
        }
        framed.push(kind);
        framed.extend_from_slice(&body);
        framed[..4].copy_from_slice(&((body.len() + 1) as u32).to_le_bytes());
        match first_frame(&framed) {
            // Text is cleaned, so it may differ.
            Ok(Some((message @ Message::Refuse { .. }, taken))) => {
                assert_eq!(taken, framed.len());
                assert!(message.to_frame().len() <= 3 * framed.len());
            }
            Ok(Some((message, taken))) => {
                assert_eq!((message.to_frame(), taken), (framed, body.len() + 5));
                if let Message::Offer { rails, .. } = message {
                    let (front, back) = rails.split_at(rails.len() / 2);
                    let limit = front.len().min(back.len());
                    if let Ok(pairing) = Pairing::compute(front, back, true) {
                        assert!((1..=limit).contains(&pairing.partners().len()));
                    }
                }
            }
            Ok(None) => panic!("the frame is complete"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

#[test]
fn any_line_and_immediate() {
    check!().with_generator(bytes_to(12)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let (word, member) = (u64::from_le_bytes(script.array()), script.byte());
        if let Some(label) = Label::parse(word, member) {
            assert!((1..=8).contains(&label.count) && member < label.count);
            let Label { tag, count } = label;
            let line = Announcement { address: 0, length: 0, keys: [0; 8], tag, count, member };
            assert_eq!(line.to_line(0)[48..56], word.to_le_bytes());
        }
        let bits = u32::from_le_bytes(script.array());
        if let Some(immediate) = Immediate::from_bits(bits) {
            assert_eq!(immediate.to_bits(), bits);
            assert!(immediate.shares <= 8 && (immediate.shares > 0 || !immediate.is_group));
        }
    });
}
