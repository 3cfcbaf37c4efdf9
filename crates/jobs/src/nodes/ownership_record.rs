//! The record of the ownership table.

use baton_store::{Tx, TxError};

use crate::model::keys;
use crate::model::ownership::Table;

/// The table as it is stored, if there is one.
pub fn load(tx: &mut dyn Tx) -> Result<Option<Table>, TxError> {
    Ok(tx.record(keys::OWNERS)?.map(|record| Table::decode(&record.value)).transpose()?)
}

/// Writes it.
pub fn store(tx: &mut dyn Tx, table: &Table) -> Result<(), TxError> {
    tx.put_record(keys::OWNERS, table.encode().into(), None).map(drop)
}
