//! Alarms: conditions of one member that every member acts on.
//!
//! **Invariant:** the set in memory and the rows in the bucket `alarm` are the same.

use std::collections::BTreeSet;

use mainstay_engine::{Family, View};
use mainstay_proto::etcdserverpb::alarm_request::AlarmAction;
use mainstay_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmResponse, AlarmType};
use prost::Message;

use crate::Fatal;
use crate::buckets::Bucket;
use crate::overlay::Overlay;

/// Raised alarms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// By type and member, so that lists have one order on all members.
    raised: BTreeSet<(i32, u64)>,
}

impl Alarms {
    /// Reads the bucket.
    pub(crate) fn load(view: &dyn View) -> Result<Self, Fatal> {
        let mut alarms = Self::default();
        let mut rows = view.cursor(Family::System, Bucket::Alarm.scan())?;
        rows.seek_to_first();
        while rows.valid() {
            let key = Bucket::Alarm.row_key(rows.key());
            let member = AlarmMember::decode(key)
                .map_err(|error| Fatal::damaged("bucket alarm", key, error.to_string()))?;
            alarms.raised.insert((member.alarm, member.member_id));
            rows.next();
        }
        rows.status()?;
        Ok(alarms)
    }

    /// All alarms, or those of one type.
    pub fn list(&self, alarm: AlarmType) -> Vec<AlarmMember> {
        self.list_number(alarm as i32)
    }

    fn list_number(&self, alarm: i32) -> Vec<AlarmMember> {
        let all = alarm == AlarmType::None as i32;
        let wanted = self.raised.iter().filter(|(kind, _)| all || *kind == alarm);
        wanted
            .map(|(alarm, member_id)| AlarmMember { member_id: *member_id, alarm: *alarm })
            .collect()
    }

    /// Whether any member raised this alarm.
    pub fn is_raised(&self, alarm: AlarmType) -> bool {
        let kind = alarm as i32;
        self.raised.range((kind, 0)..=(kind, u64::MAX)).next().is_some()
    }

    /// Whether no alarm is raised.
    pub fn is_empty(&self) -> bool {
        self.raised.is_empty()
    }

    /// Applies a request; true if the set changed.
    pub(crate) fn apply(
        &mut self,
        overlay: &mut Overlay<'_>,
        request: &AlarmRequest,
    ) -> (AlarmResponse, bool) {
        let member = AlarmMember { member_id: request.member_id, alarm: request.alarm };
        let entry = (member.alarm, member.member_id);
        let row = Bucket::Alarm.engine_key(&member.encode_to_vec());
        let (alarms, changed) = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => (self.list_number(request.alarm), false),
            Ok(AlarmAction::Activate) if request.alarm == AlarmType::None as i32 => (vec![], false),
            Ok(AlarmAction::Activate) => {
                let new = self.raised.insert(entry);
                if new {
                    overlay.put(Family::System, row, bytes::Bytes::new());
                }
                (vec![member], new)
            }
            Ok(AlarmAction::Deactivate) if self.raised.remove(&entry) => {
                overlay.delete(Family::System, row);
                (vec![member], true)
            }
            Ok(AlarmAction::Deactivate) | Err(_) => (vec![], false),
        };
        (AlarmResponse { header: None, alarms }, changed)
    }
}
