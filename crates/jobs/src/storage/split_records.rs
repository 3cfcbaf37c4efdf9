//! Splits large input into records of bounded size.

use serde::Serialize;

use crate::model::limits::SPLIT_BYTES;

/// Splits items into runs that each fit a record, measured as JSON, which can take six times the bytes of a text.
pub fn split<T: Serialize>(items: Vec<T>) -> Vec<Vec<T>> {
    let (mut runs, mut bytes) = (Vec::<Vec<T>>::new(), usize::MAX);
    for item in items {
        let length = serde_json::to_vec(&item).map_or(0, |item| item.len());
        match runs.last_mut().filter(|_| bytes.saturating_add(length) <= SPLIT_BYTES) {
            Some(run) => {
                run.push(item);
                bytes += length;
            }
            None => {
                runs.push(vec![item]);
                bytes = length;
            }
        }
    }
    runs
}
