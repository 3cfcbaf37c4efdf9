//! Roles, and what they allow.

use crate::routes::Access;

/// What a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Admin,
    /// May read and write.
    ReadWrite,
    /// May read.
    ReadOnly,
    /// May push.
    WriteOnly,
}

impl Role {
    /// Whether this role may call a route of that level.
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Public => true,
            Access::Read => self != Self::WriteOnly,
            Access::Push => self != Self::ReadOnly,
            Access::Write => matches!(self, Self::Admin | Self::ReadWrite),
            Access::Admin => self == Self::Admin,
        }
    }
}

/// What tokens call the roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleNames {
    /// Of [`Role::Admin`].
    pub admin: String,
    /// Of [`Role::ReadWrite`].
    pub read_write: String,
    /// Of [`Role::ReadOnly`].
    pub read_only: String,
    /// Of [`Role::WriteOnly`].
    pub write_only: String,
}

impl RoleNames {
    /// The role of that name.
    pub fn role(&self, name: &str) -> Option<Role> {
        let names = [
            (&self.admin, Role::Admin),
            (&self.read_write, Role::ReadWrite),
            (&self.read_only, Role::ReadOnly),
            (&self.write_only, Role::WriteOnly),
        ];
        names.into_iter().find(|(own, _)| *own == name).map(|(_, role)| role)
    }
}
