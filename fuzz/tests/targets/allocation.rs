//! Limits on memory: no input may make the parser allocate more than its limit.

#[path = "../../../tests/support/allocator.rs"]
mod allocator;

pub(crate) use allocator::peak;

#[test]
fn the_peak_is_what_was_held_at_once() {
    let peak = peak(|| {
        drop(std::hint::black_box(vec![0_u8; 1 << 20]));
        drop(std::hint::black_box(vec![0_u8; 1 << 19]));
    });
    assert!((1 << 20..1 << 21).contains(&peak), "{peak}");
}
