//! The table of all calls that are served, with their names on the wire.
//!
//! Dispatch, metrics and the texts about unknown names all read this table.

/// How many messages go each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ServerStream,
    BidiStream,
}

impl Kind {
    /// The label in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

macro_rules! methods {
    ($($service:literal { $($variant:ident = $name:literal $kind:ident,)* })*) => {
        /// A call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Method { $($($variant,)*)* }

        impl Method {
            /// All of them, in the order of their numbers.
            pub(crate) const ALL: &'static [Method] = &[$($(Method::$variant,)*)*];
            /// The services that they belong to.
            pub(crate) const SERVICES: &'static [&'static str] = &[$($service,)*];

            /// The call of a request path.
            pub(crate) fn find(path: &str) -> Option<Self> {
                match path {
                    $($(concat!("/", $service, "/", $name) => Some(Self::$variant),)*)*
                    _ => None,
                }
            }

            /// The path of its requests.
            pub(crate) fn path(self) -> &'static str {
                match self {
                    $($(Self::$variant => concat!("/", $service, "/", $name),)*)*
                }
            }

            pub(crate) fn service(self) -> &'static str {
                match self { $($(Self::$variant => $service,)*)* }
            }

            pub(crate) fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            pub(crate) fn kind(self) -> Kind {
                match self { $($(Self::$variant => Kind::$kind,)*)* }
            }
        }
    };
}

methods! {
    "etcdserverpb.KV" {
        Range = "Range" Unary,
        RangeStream = "RangeStream" ServerStream,
        Put = "Put" Unary,
        DeleteRange = "DeleteRange" Unary,
        Txn = "Txn" Unary,
        Compact = "Compact" Unary,
    }
    "etcdserverpb.Watch" {
        Watch = "Watch" BidiStream,
    }
    "etcdserverpb.Lease" {
        LeaseGrant = "LeaseGrant" Unary,
        LeaseRevoke = "LeaseRevoke" Unary,
        LeaseKeepAlive = "LeaseKeepAlive" BidiStream,
        LeaseTimeToLive = "LeaseTimeToLive" Unary,
        LeaseLeases = "LeaseLeases" Unary,
    }
    "etcdserverpb.Cluster" {
        MemberAdd = "MemberAdd" Unary,
        MemberRemove = "MemberRemove" Unary,
        MemberUpdate = "MemberUpdate" Unary,
        MemberList = "MemberList" Unary,
        MemberPromote = "MemberPromote" Unary,
    }
    "etcdserverpb.Maintenance" {
        Alarm = "Alarm" Unary,
        Status = "Status" Unary,
        Defragment = "Defragment" Unary,
        Hash = "Hash" Unary,
        HashKv = "HashKV" Unary,
        Snapshot = "Snapshot" ServerStream,
        MoveLeader = "MoveLeader" Unary,
        Downgrade = "Downgrade" Unary,
    }
    "etcdserverpb.Auth" {
        AuthEnable = "AuthEnable" Unary,
        AuthDisable = "AuthDisable" Unary,
        AuthStatus = "AuthStatus" Unary,
        Authenticate = "Authenticate" Unary,
        UserAdd = "UserAdd" Unary,
        UserGet = "UserGet" Unary,
        UserList = "UserList" Unary,
        UserDelete = "UserDelete" Unary,
        UserChangePassword = "UserChangePassword" Unary,
        UserGrantRole = "UserGrantRole" Unary,
        UserRevokeRole = "UserRevokeRole" Unary,
        RoleAdd = "RoleAdd" Unary,
        RoleGet = "RoleGet" Unary,
        RoleList = "RoleList" Unary,
        RoleDelete = "RoleDelete" Unary,
        RoleGrantPermission = "RoleGrantPermission" Unary,
        RoleRevokePermission = "RoleRevokePermission" Unary,
    }
    "v3lockpb.Lock" {
        Lock = "Lock" Unary,
        Unlock = "Unlock" Unary,
    }
    "v3electionpb.Election" {
        Campaign = "Campaign" Unary,
        Proclaim = "Proclaim" Unary,
        Leader = "Leader" Unary,
        Observe = "Observe" ServerStream,
        Resign = "Resign" Unary,
    }
    "grpc.health.v1.Health" {
        HealthCheck = "Check" Unary,
        HealthWatch = "Watch" ServerStream,
    }
}

/// What a client is told about a path that names no call.
pub(crate) fn unknown(path: &str) -> String {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'))
    else {
        return format!("malformed method name: {path:?}");
    };
    if Method::SERVICES.contains(&service) {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    /// The descriptors say the same about every call of etcd's services.
    #[test]
    fn the_table_agrees_with_the_protocol() {
        let set = prost_types::FileDescriptorSet::decode(mainstay_proto::DESCRIPTORS).unwrap();
        let mut declared = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    declared += 1;
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let found = Method::find(&path).unwrap_or_else(|| panic!("{path} is missing"));
                    let kind = match (method.client_streaming(), method.server_streaming()) {
                        (true, true) => Kind::BidiStream,
                        (false, true) => Kind::ServerStream,
                        _ => Kind::Unary,
                    };
                    assert_eq!((found.path(), found.kind()), (path.as_str(), kind));
                }
            }
        }
        let health = 2;
        assert_eq!(declared + health, Method::ALL.len());
    }

    #[test]
    fn numbers_are_positions() {
        for (at, method) in Method::ALL.iter().enumerate() {
            assert_eq!(*method as usize, at);
            assert_eq!(method.path(), format!("/{}/{}", method.service(), method.name()));
        }
    }

    #[test]
    fn unknown_names_are_answered_as_grpc_does() {
        assert_eq!(
            unknown("/etcdserverpb.KV/Get"),
            "unknown method Get for service etcdserverpb.KV"
        );
        assert_eq!(unknown("/a.B/C"), "unknown service a.B");
        assert_eq!(unknown("/a"), "malformed method name: \"/a\"");
    }
}
