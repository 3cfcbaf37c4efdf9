//! Roles, and what they allow.

use super::access::Access;

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
    /// Whether this role allows that.
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

impl Default for RoleNames {
    fn default() -> Self {
        Self {
            admin: "admin".into(),
            read_write: "read-write".into(),
            read_only: "read-only".into(),
            write_only: "write-only".into(),
        }
    }
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
