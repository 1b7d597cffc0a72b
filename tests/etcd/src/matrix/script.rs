//! The session: every command and option of etcdctl that is not about auth or TLS.

use std::time::Duration;

/// One step of the session.
#[derive(Clone, Debug)]
pub enum Step {
    /// One command.
    Run(Vec<&'static str>),
    /// One command with standard input.
    Feed(Vec<&'static str>, &'static str),
    /// A command that runs while the steps are done, and is ended then.
    Beside(Vec<&'static str>, Vec<Step>),
    /// Lets this much time pass.
    Wait(Duration),
    /// Moves leadership away from the leader (nothing on one member).
    MoveLeader,
}

fn run(line: &'static str) -> Step {
    Step::Run(words(line))
}

fn feed(line: &'static str, input: &'static str) -> Step {
    Step::Feed(words(line), input)
}

fn beside(line: &'static str, steps: Vec<Step>) -> Step {
    Step::Beside(words(line), steps)
}

/// Words are separated by blanks; `''` is an empty word.
fn words(line: &'static str) -> Vec<&'static str> {
    line.split(' ').map(|word| if word == "''" { "" } else { word }).collect()
}

/// The session for an etcdctl and a cluster of `members`.
pub fn script(is_new: bool, members: usize) -> Vec<Step> {
    let mut steps = key_steps();
    steps.extend(txn_steps());
    steps.extend(watch_steps());
    steps.extend(lease_steps());
    steps.extend(lock_steps());
    steps.extend(cluster_steps(members));
    steps.extend(maintenance_steps());
    if is_new {
        steps.extend(new_steps());
    }
    steps
}

fn key_steps() -> Vec<Step> {
    vec![
        run("version"),
        run("get nothing"),
        run("put foo bar"),
        run("put foo baz --prev-kv"),
        run("put foo --ignore-value"),
        run("put foo x --ignore-value"),
        run("put missing --ignore-value"),
        run("put foo qux --ignore-lease"),
        run("put foo bar --lease=123"),
        run("put '' x"),
        feed("put fromstdin", "value from stdin"),
        run("put -- -dash value"),
        run("put empty ''"),
        run("put a 1"),
        run("put a/1 5"),
        run("put a/2 4"),
        run("put a/3 3"),
        run("put b 2"),
        run("put zz 1"),
        run("get foo"),
        run("get foo --hex"),
        run("get foo --print-value-only"),
        run("get foo --keys-only"),
        run("get a --prefix"),
        run("get a --prefix --keys-only"),
        run("get a --prefix --count-only"),
        run("get a --prefix --limit=2"),
        run("get a b"),
        run("get a --from-key"),
        run("get a --from-key --limit=3"),
        run("get '' --prefix"),
        run("get '' --from-key"),
        run("get a --prefix --order=DESCEND"),
        run("get a --prefix --order=ASCEND --sort-by=VALUE"),
        run("get a --prefix --order=DESCEND --sort-by=CREATE"),
        run("get a --prefix --order=DESCEND --sort-by=MODIFY"),
        run("get a --prefix --sort-by=VERSION"),
        run("get a --prefix --sort-by=KEY --order=DESCEND --limit=1"),
        run("get a --prefix --sort-by=NONSENSE"),
        run("get a --prefix --order=NONSENSE"),
        run("get foo --rev=2"),
        run("get foo --rev=1"),
        run("get foo --rev=100000"),
        run("get foo --consistency=s"),
        run("get foo --consistency=l"),
        run("get foo --consistency=x"),
        run("get a z --prefix"),
        run("get a --prefix --from-key"),
        run("del nothing"),
        run("del zz --prev-kv"),
        run("del a/1 a/3 --prev-kv"),
        run("del a/3"),
        run("del b --from-key --prev-kv"),
        run("del a --prefix"),
        run("del"),
        run("put x 1"),
        run("put x 2"),
        run("put x 3"),
        run("compaction 10"),
        run("compaction 10"),
        run("compaction 100000"),
        run("compaction 12 --physical"),
        run("compaction abc"),
        run("get x --rev=3"),
    ]
}

fn txn_steps() -> Vec<Step> {
    vec![
        run("put t old"),
        feed("txn", "value(\"t\") = \"old\"\n\nput t new\nget t\n\nget t\n\n"),
        feed("txn", "value(\"t\") = \"old\"\n\nput t new\n\nget t\ndel nothing\n\n"),
        feed(
            "txn",
            "mod(\"t\") > \"0\"\nversion(\"t\") = \"2\"\n\nput t2 v --lease=0\nget t --prefix\n\n\n",
        ),
        feed("txn", "create(\"absent\") = \"0\"\n\nput absent 1\nget absent\ndel absent\n\n\n"),
        feed("txn", "lease(\"t\") = \"0\"\n\nget t\n\n\n"),
        feed("txn", "value(\"t\") != \"x\"\nvalue(\"t\") < \"zzz\"\n\ndel t --prev-kv\n\n\n"),
        feed("txn", "\n\nput d 1\nput d 2\n\n\n"),
        feed("txn", "nonsense\n\n\n\n"),
        feed("txn", "\n\nget x --rev=100000\nput y 1\n\n\n"),
        run("get t --prefix"),
    ]
}

fn watch_steps() -> Vec<Step> {
    vec![
        beside("watch w", vec![run("put w 1"), run("put w 2"), run("del w"), run("put other 1")]),
        beside(
            "watch w --prefix --prev-kv",
            vec![run("put w/1 1"), run("put w/1 2"), run("del w --prefix")],
        ),
        beside("watch w z", vec![run("put x 1"), run("put v 1")]),
        beside("watch --rev=20 a --prefix", vec![run("put a 3")]),
        beside("watch --rev=1 x", vec![run("put x after-compaction")]),
        beside("watch x --from-key", vec![run("put xx 1"), run("put b 1")]),
    ]
}

fn lease_steps() -> Vec<Step> {
    vec![
        run("lease list"),
        run("lease grant 1000"),
        run("put l1 v --lease={lease}"),
        run("put l2 v --lease={lease}"),
        run("get l --prefix"),
        run("lease timetolive {lease}"),
        run("lease timetolive {lease} --keys"),
        run("lease keep-alive --once {lease}"),
        run("lease list"),
        run("put l1 w"),
        run("lease timetolive {lease} --keys"),
        run("lease revoke {lease}"),
        run("get l --prefix"),
        run("lease revoke {lease}"),
        run("lease timetolive {lease}"),
        run("lease keep-alive --once {lease}"),
        run("lease grant abc"),
        run("lease grant 9000000001"),
        run("lease grant 0"),
    ]
}

fn lock_steps() -> Vec<Step> {
    vec![
        run("lock mutex echo locked"),
        beside("elect office candidate", vec![run("get office --prefix --count-only")]),
        run("get mutex --prefix"),
        run("get office --prefix --print-value-only"),
    ]
}

fn cluster_steps(members: usize) -> Vec<Step> {
    let mut steps = vec![
        run("member list"),
        run("member list --hex"),
        run("member remove 5"),
        run("member remove nonsense"),
        run("member update 5 --peer-urls=http://127.0.0.1:1"),
        run("member promote 5"),
        run("member add"),
        run("member add new"),
        run("member add new --peer-urls=bad"),
        run("endpoint health"),
        run("endpoint health --cluster"),
        run("endpoint status"),
        run("endpoint status --cluster"),
        run("endpoint hashkv"),
        run("endpoint hashkv --cluster"),
        run("move-leader 5"),
        Step::MoveLeader,
    ];
    if members > 1 {
        steps.extend([
            run("member add joiner --peer-urls=http://127.0.0.1:1 --learner"),
            run("member add second --peer-urls=http://127.0.0.1:2 --learner"),
            // In the same second the id would be the same too.
            Step::Wait(Duration::from_millis(1100)),
            run("member add again --peer-urls=http://127.0.0.1:1"),
            run("member list"),
            run("member promote {learner}"),
            run("member update {learner} --peer-urls=http://127.0.0.1:3"),
            run("member list"),
            run("member remove {learner}"),
            run("member remove {learner}"),
            run("member list"),
        ]);
    }
    steps
}

fn maintenance_steps() -> Vec<Step> {
    vec![
        run("alarm list"),
        run("alarm disarm"),
        run("defrag"),
        run("defrag --cluster"),
        run("snapshot save {scratch}/snapshot.db"),
        run("snapshot status {scratch}/snapshot.db"),
        run("make-mirror"),
        run("nonsense"),
    ]
}

/// What came after 3.4.
fn new_steps() -> Vec<Step> {
    vec![
        run("get a --prefix --stream"),
        run("get '' --from-key --stream"),
        run("get x --min-mod-rev=3 --prefix"),
        run("get '' --prefix --max-create-rev=12 --keys-only"),
        run("del w z --range"),
        run("endpoint hashkv --rev=14"),
        run("downgrade validate 3.6"),
        run("downgrade validate 3.5"),
        run("downgrade validate nonsense"),
        run("downgrade cancel"),
        run("member list --consistency=s"),
        run("auth status"),
    ]
}
