//! Positive numbers in 8 bits.

/// A format: 0 is zero, 255 is "not a number", and the others are 16 steps per power of two, from
/// 2^`lowest` to 2^(`lowest` + 15) x 1.8125. Numbers outside are clamped.
///
/// A number that is read back is within 1/32 of what was written. As both sides of a link compute
/// with numbers that were written and read, they compute the same scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Float8 {
    pub(super) lowest: i32,
}

const ZERO: u8 = 0;
const NOT_A_NUMBER: u8 = 255;
const STEPS: f64 = 16.0;
const LARGEST: f64 = 253.0;

impl Float8 {
    pub(super) fn write(self, value: f64) -> u8 {
        if value.is_nan() {
            return NOT_A_NUMBER;
        }
        if value <= 0.0 {
            return ZERO;
        }
        let scaled = value / 2f64.powi(self.lowest);
        if scaled < 1.0 {
            return 1;
        }
        let exponent = scaled.log2().floor().min(STEPS);
        // Rounding up to the next power of two carries into the exponent.
        let step = exponent * STEPS + ((scaled / exponent.exp2() - 1.0) * STEPS).round();
        1 + step.clamp(0.0, LARGEST) as u8
    }

    pub(super) fn read(self, code: u8) -> f64 {
        match code {
            ZERO => 0.0,
            NOT_A_NUMBER => f64::NAN,
            code => {
                let step = code - 1;
                let mantissa = 1.0 + f64::from(step % 16) / STEPS;
                mantissa * 2f64.powi(self.lowest + i32::from(step / 16))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: Float8 = Float8 { lowest: 3 };

    #[test]
    fn every_code_reads_back_as_itself() {
        for code in 0..=255 {
            assert_eq!(FORMAT.write(FORMAT.read(code)), code);
        }
    }

    #[test]
    fn known_numbers() {
        for (value, code) in
            [(0.0, 0), (-1.0, 0), (1.0, 1), (8.0, 1), (8.5, 2), (16.0, 17), (1e300, 254)]
        {
            assert_eq!(FORMAT.write(value), code, "{value}");
        }
        assert_eq!(FORMAT.write(f64::INFINITY), 254);
        assert!(FORMAT.read(NOT_A_NUMBER).is_nan());
    }

    proptest! {
        #[test]
        fn what_is_read_is_within_a_32nd(value in 8.0f64..400_000.0) {
            let read = FORMAT.read(FORMAT.write(value));
            prop_assert!((read - value).abs() <= value / 32.0, "{value} became {read}");
        }

        #[test]
        fn larger_numbers_have_no_smaller_codes(a in 0.0f64..1e6, b in 0.0f64..1e6) {
            prop_assert!(FORMAT.write(a.min(b)) <= FORMAT.write(a.max(b)));
        }
    }
}
