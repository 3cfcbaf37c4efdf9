//! Numbers as digits.

/// Appends the decimal digits of `number`.
pub fn write_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        // The remainder is below ten.
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_written_number_is_read_back(value in any::<u64>()) {
            let mut out = Vec::new();
            write_decimal(&mut out, value);
            prop_assert_eq!(std::str::from_utf8(&out).unwrap().parse(), Ok(value));
        }
    }
}
