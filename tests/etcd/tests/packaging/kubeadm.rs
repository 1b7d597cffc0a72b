//! The manifest for kubeadm: what it says is read, and its command is run.

use std::process::Command;
use std::time::{Duration, Instant};

use mainstay_etcd_tests::member::{free_port, mainstay_binary};
use mainstay_test_pki::{Ca, Leaf};
use serde_json::Value;

use crate::{Service, etcdctl, output, run, text};

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap()
}

/// The status that a path of a URL is answered with.
fn status(url: &str) -> String {
    let arguments = ["-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", url];
    String::from_utf8(run(Command::new("curl").args(arguments)).stdout).unwrap()
}

#[test]
fn the_manifest_and_the_patch_name_this_version() {
    let image = format!("mainstay:{}", env!("CARGO_PKG_VERSION"));
    for path in ["packaging/kubeadm/etcd.yaml", "packaging/kubeadm/patches/etcd.yaml"] {
        let manifest = yaml(path);
        let containers = manifest["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        assert_eq!(containers[0]["name"], "etcd");
        assert_eq!(containers[0]["image"], image.as_str());
    }
}

#[test]
fn every_directory_of_the_command_is_mounted() {
    let manifest = yaml("packaging/kubeadm/etcd.yaml");
    let container = &manifest["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array().unwrap();
    let volumes = manifest["spec"]["volumes"].as_array().unwrap();
    for mount in mounts {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        assert_eq!(volume["hostPath"]["path"], mount["mountPath"]);
    }
    let mut paths = 0;
    for word in container["command"].as_array().unwrap() {
        let Some((_, path)) = word.as_str().unwrap().split_once("=/") else { continue };
        let path = format!("/{path}");
        let inside = |mount: &Value| path.starts_with(mount["mountPath"].as_str().unwrap());
        assert!(mounts.iter().any(inside), "{path}");
        paths += 1;
    }
    assert_eq!(paths, 7);
}

#[test]
fn its_command_serves_and_its_probes_answer() {
    let manifest = yaml("packaging/kubeadm/etcd.yaml");
    let container = &manifest["spec"]["containers"][0];
    let ca = Ca::new("etcd-ca");
    for (name, serial) in [("server", 1), ("peer", 2), ("client", 3)] {
        ca.issue(name, Leaf { cn: name, serial, ..Leaf::default() });
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let [client, peer, metrics] = [0; 3].map(|_| free_port().unwrap().to_string());
    // On this machine the node's address is that of the loopback, where one listener is enough.
    let here = |text: &str| {
        let mut text = text
            .replace("https://127.0.0.1:2379,https://192.0.2.10:2379", "https://127.0.0.1:2379")
            .replace("192.0.2.10", "127.0.0.1")
            .replace("/var/lib/etcd", &data)
            .replace("/etc/kubernetes/pki/etcd/ca.crt", &ca.file.display().to_string());
        for (port, free) in [(":2379", &client), (":2380", &peer), (":2381", &metrics)] {
            text = text.replace(port, &format!(":{free}"));
        }
        for (end, file) in [(".crt", ".pem"), (".key", ".key")] {
            for name in ["server", "peer"] {
                let path = ca.path(&format!("{name}{file}")).display().to_string();
                text = text.replace(&format!("/etc/kubernetes/pki/etcd/{name}{end}"), &path);
            }
        }
        text
    };
    let words: Vec<String> = container["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| here(word.as_str().unwrap()))
        .collect();
    // In the image, etcd is a link to the binary.
    let link = dir.path().join(&words[0]);
    std::os::unix::fs::symlink(mainstay_binary().unwrap(), &link).unwrap();
    let mut service = Service::start(Command::new(&link).args(&words[1..]), dir.path());
    assert_eq!(service.told(), "READY=1");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["scheme"], "HTTP");
        let (host, path) = (get["host"].as_str().unwrap(), get["path"].as_str().unwrap());
        let url = here(&format!("http://{host}:{}{path}", get["port"]));
        let start = Instant::now();
        while status(&url) != "200" {
            assert!(start.elapsed() < Duration::from_secs(10), "{url}: {}", service.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let endpoint = format!("https://127.0.0.1:{client}");
    let mut command = etcdctl();
    command.args(["--endpoints", &endpoint, "--cacert"]).arg(&ca.file);
    assert!(!run(command.arg("put").args(["a", "b"])).status.success(), "without a certificate");
    command = etcdctl();
    command.args(["--endpoints", &endpoint, "--cacert"]).arg(&ca.file);
    command.arg("--cert").arg(ca.path("client.pem")).arg("--key").arg(ca.path("client.key"));
    assert_eq!(output(command.args(["put", "a", "b"])), "OK\n");
    assert!(!service.said().contains("flag has no effect"), "{}", service.said());
    service.stop();
}
