//! Texts that users write.

use barewire_hca::Faults;
use bolero::check;

use crate::script::bytes_to;

#[test]
fn any_fault_texts() {
    check!().with_generator(bytes_to(128)).for_each(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        match text.parse::<Faults>() {
            Ok(faults) => {
                let Faults { drop, duplicate, reorder, corrupt, delay, flap, .. } = faults;
                for probability in [drop, duplicate, reorder, corrupt, delay, flap] {
                    assert!((0.0..=1.0).contains(&probability), "{faults:?}");
                }
                for time in [faults.delay_us, faults.flap_us, faults.slow_dma_us] {
                    assert!(time <= 60_000_000, "{faults:?}");
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}
