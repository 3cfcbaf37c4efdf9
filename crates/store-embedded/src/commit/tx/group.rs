//! Consumer groups.
//!
//! A change of a group's start closes all open segments: later appends get a time of their own. So a group that starts
//! "now" misses no message and gets no older one.

use std::sync::Arc;

use baton_store::{Group, GroupSpec, GroupStart, Tx};
use baton_types::{GroupId, QueueId};

use super::EmbeddedTx;
use crate::rows::{encode_group, number_key};

pub fn put(tx: &mut EmbeddedTx<'_>, queue: QueueId, spec: &GroupSpec<'_>) -> Arc<Group> {
    tx.writer.batch.segments.close_segments();
    let group = Arc::new(Group {
        id: GroupId(tx.fresh_id()),
        queue,
        name: spec.name.into(),
        start: spec.start,
        subscribed_at: spec.subscribed_at,
        conflation: spec.conflation,
    });
    tx.mark_catalog_change();
    let now = tx.now();
    let writer = &mut *tx.writer;
    let (added, replaced) = writer.state.put_group(group.clone(), now);
    let table = &writer.shared.tables.groups;
    if added {
        writer.batch.put(table, number_key(group.id.0), encode_group(&group));
    }
    if let Some(replaced) = replaced {
        writer.batch.remove(table, number_key(replaced.0));
        writer.deletes.groups.push(replaced);
    }
    group
}

pub fn set_start(tx: &mut EmbeddedTx<'_>, id: GroupId, start: GroupStart) {
    tx.writer.batch.segments.close_segments();
    let Some(old) = tx.writer.state.group_by_id(id) else { return };
    let group = Arc::new(Group { start, ..(*old).clone() });
    tx.mark_durable_write();
    tx.writer.shared.context.bump_catalog_version();
    let now = tx.now();
    let writer = &mut *tx.writer;
    writer.batch.put(&writer.shared.tables.groups, number_key(id.0), encode_group(&group));
    writer.state.change_group(group, now);
}

pub fn remove(tx: &mut EmbeddedTx<'_>, id: GroupId) {
    tx.mark_catalog_change();
    let writer = &mut *tx.writer;
    writer.state.remove_group(id);
    writer.batch.remove(&writer.shared.tables.groups, number_key(id.0));
    writer.deletes.groups.push(id);
}
