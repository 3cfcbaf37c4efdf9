//! The data directory and the disk below it.

pub mod directory;
mod free_space;

pub use free_space::FreeSpace;
