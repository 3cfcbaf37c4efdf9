//! What every backend must show.
