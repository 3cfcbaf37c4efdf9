//! The record of the ownership table.

use baton_store::{Tx, TxError};

use crate::model::keys;
use crate::model::ownership::OwnershipTable;

/// Reads the table, if it exists.
pub fn load(tx: &mut dyn Tx) -> Result<Option<OwnershipTable>, TxError> {
    Ok(tx.record(keys::OWNERS)?.map(|record| OwnershipTable::decode(&record.value)).transpose()?)
}

/// Writes the table.
pub fn store(tx: &mut dyn Tx, table: &OwnershipTable) -> Result<(), TxError> {
    tx.put_record(keys::OWNERS, table.encode().into(), None).map(drop)
}
