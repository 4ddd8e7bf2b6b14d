//! Snapshots that are taken in the background of the workload, and what each had in it when it was answered.

use super::recorder::Recorder;
use crate::common::{Mount, text};
use dedupfs::admin::{self, Context, Request, Response, SnapshotRequest, To};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A snapshot that was answered for.
pub struct Taken {
    /// Where the log of the disk was then.
    position: usize,
    id: String,
    files: Files,
}

/// Hashes of contents by names.
type Files = BTreeMap<PathBuf, blake3::Hash>;

/// At most one is being taken.
#[derive(Default)]
pub struct Snapshots {
    running: Option<Child>,
    begun: u32,
    pub taken: Vec<Taken>,
}

impl Snapshots {
    pub fn begin(&mut self, mount: &Mount) {
        if self.running.is_none() {
            self.begun += 1;
            // Snapshots without a name may be given up.
            let name = format!("snapshot-{}", self.begun);
            let mut command = mount.dedupctl();
            command.args(["snapshot", "create", "--name", &name, "--json"]).current_dir(mount.mnt());
            self.running = Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        }
    }

    /// Notes what was answered. Without `wait` only if it was already.
    pub fn look(&mut self, mount: &Mount, recorder: &Recorder, wait: bool) {
        let Some(mut running) = self.running.take() else { return };
        if !wait && running.try_wait().unwrap().is_none() {
            self.running = Some(running);
            return;
        }
        let output = running.wait_with_output().unwrap();
        let position = recorder.position();
        assert!(output.status.success(), "dedupctl snapshot create: {}", text(&output));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = told["snapshots"][0]["id"].as_str().unwrap().to_owned();
        let files = files_in(&mount.at(&format!(".snapshots/{id}")));
        self.taken.push(Taken { position, id, files });
    }

    /// The daemon was killed.
    pub fn forget(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.wait().unwrap();
        }
    }
}

impl Taken {
    pub fn is_promised_at(&self, place: usize) -> bool {
        self.position <= place
    }

    /// What of it is not there as it was.
    pub fn wrong(&self, context: Context<'_>) -> Option<String> {
        let temp = tempfile::tempdir().unwrap();
        let to = temp.path().join("restored");
        let restore = SnapshotRequest::Restore {
            id: self.id.clone(),
            path: PathBuf::new(),
            to: Some(To(to.clone())),
            delete: false,
        };
        match admin::run(context, Request::Snapshot(restore), &mut |_| true) {
            Ok(Response::Snapshot(_)) if files_in(&to) == self.files => None,
            Ok(Response::Snapshot(_)) => Some(format!("snapshot {}: it is not what it was", self.id)),
            other => Some(format!("snapshot {}: {other:?}", self.id)),
        }
    }
}

fn files_in(dir: &Path) -> Files {
    let files = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files
        .map(|path| (path.file_name().unwrap().into(), blake3::hash(&std::fs::read(&path).unwrap())))
        .collect()
}
