//! Background tasks of a store.

pub mod slot_repair;
pub mod sweeper;
