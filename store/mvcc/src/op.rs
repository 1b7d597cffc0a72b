//! What kind of request an entry holds, under the names that etcd gives them in its metrics.

use mainstay_proto::etcdserverpb::InternalRaftRequest;

macro_rules! ops {
    ($($field:ident => $name:ident,)*) => {
        /// The kind of a request in the log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is named after its request")]
        pub enum Op {
            $($name,)*
            /// None that this version knows.
            Unknown,
        }

        impl Op {
            /// All of them.
            pub const ALL: &'static [Op] = &[$(Op::$name,)* Op::Unknown];

            /// The name that metrics have for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$name => stringify!($name),)*
                    Op::Unknown => "Unknown",
                }
            }

            /// The kind of a request. The first content that is set counts, in etcd's order.
            pub fn of(request: &InternalRaftRequest) -> Self {
                $(if request.$field.is_some() {
                    return Op::$name;
                })*
                Op::Unknown
            }
        }
    };
}

ops! {
    cluster_version_set => ClusterVersionSet,
    cluster_member_attr_set => ClusterMemberAttrSet,
    downgrade_info_set => DowngradeInfoSet,
    downgrade_version_test => DowngradeVersionTest,
    range => Range,
    put => Put,
    delete_range => DeleteRange,
    txn => Txn,
    compaction => Compaction,
    lease_grant => LeaseGrant,
    lease_revoke => LeaseRevoke,
    lease_checkpoint => LeaseCheckpoint,
    alarm => Alarm,
    authenticate => Authenticate,
    auth_enable => AuthEnable,
    auth_disable => AuthDisable,
    auth_status => AuthStatus,
    auth_user_add => AuthUserAdd,
    auth_user_delete => AuthUserDelete,
    auth_user_change_password => AuthUserChangePassword,
    auth_user_grant_role => AuthUserGrantRole,
    auth_user_get => AuthUserGet,
    auth_user_revoke_role => AuthUserRevokeRole,
    auth_role_add => AuthRoleAdd,
    auth_role_grant_permission => AuthRoleGrantPermission,
    auth_role_get => AuthRoleGet,
    auth_role_revoke_permission => AuthRoleRevokePermission,
    auth_role_delete => AuthRoleDelete,
    auth_user_list => AuthUserList,
    auth_role_list => AuthRoleList,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_proto::etcdserverpb as pb;

    #[test]
    fn the_first_content_counts() {
        let put = Some(pb::PutRequest::default());
        let alarm = Some(pb::AlarmRequest::default());
        let request = InternalRaftRequest { put, alarm, ..Default::default() };
        assert_eq!(Op::of(&request).name(), "Put");
        assert_eq!(Op::of(&InternalRaftRequest::default()), Op::Unknown);
        for (at, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, at, "{op:?} is its own number");
        }
    }
}
