//! Programs and libraries that are run from the mount.

use super::twin::{Twin, bounded, wait_for};
use crate::common::{As, as_both};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

struct Running(Child);

impl Running {
    fn start(path: &std::path::Path) -> Running {
        let child = Command::new(path).arg("300").stdout(Stdio::null()).spawn().unwrap();
        let exe = format!("/proc/{}/exe", child.id());
        wait_for("the program", || fs::read_link(&exe).is_ok_and(|exe| exe.file_name() == path.file_name()));
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open(path: &std::path::Path, flags: OFlags) -> rustix::io::Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// Seen to fail, by an empty file under a running program, when opens for running are not counted: the kernel asks
/// for O_RDONLY|O_TRUNC before it looks whether the program runs.
#[test]
fn a_running_program_is_neither_written_nor_emptied_nor_converted() {
    as_both(|user| {
        let modes: &[&[&str]] = if user == As::Root { &[&[], &["--no-passthrough"]] } else { &[&[]] };
        for flags in modes {
            let twin = Twin::with_flags(user, flags);
            let path = twin.mount.at("program");
            fs::copy("/bin/sleep", &path).unwrap();
            for stub in [false, true] {
                if stub {
                    twin.settle(&["program"]);
                }
                let mut program = Running::start(&path);
                for flags in [
                    OFlags::WRONLY,
                    OFlags::RDWR,
                    OFlags::WRONLY | OFlags::TRUNC,
                    OFlags::RDWR | OFlags::APPEND,
                    OFlags::RDONLY | OFlags::TRUNC,
                ] {
                    assert_eq!(open(&path, flags), Err(Errno::TXTBSY), "{flags:?}, stub: {stub}");
                }
                let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: the path is ended by a zero byte and lives until the call returns.
                assert_eq!(unsafe { libc::truncate(name.as_ptr(), 0) }, -1);
                let error = std::io::Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
                twin.mount.settle();
                assert_eq!(twin.mount.is_stub("program"), stub, "as it was");
                assert!(program.0.try_wait().unwrap().is_none());
                assert!(fs::read(&path).unwrap() == fs::read("/bin/sleep").unwrap());
                drop(program);
                // It has ended: now all of it works again.
                open(&path, OFlags::RDWR).unwrap();
                open(&path, OFlags::RDONLY | OFlags::TRUNC).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), 0);
                fs::copy("/bin/sleep", &path).unwrap();
            }
        }
    });
}

#[test]
fn programs_and_libraries_run_from_stubs() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "cp /bin/echo program; printf '#!/bin/sh\\necho script $1\\n%8192s' '' > script; chmod +x script
            printf 'int answer(void) { return 42; }' > lib.c
            printf 'int answer(void); int main(void) { return answer() != 42; }' > main.c
            cc -shared -fPIC -o libanswer.so lib.c && cc -o main main.c -L. -lanswer && echo made",
        );
        twin.settle(&["program", "script", "libanswer.so", "main"]);
        let script = "./program it runs; ./script too; LD_LIBRARY_PATH=. ./main && echo linked";
        assert!(twin.run(script).contains("linked"));
        twin.mount.remount();
        twin.run(script);
        twin.settle(&["program", "script", "libanswer.so", "main"]);
    });
}

/// A library with a page for each number, so that most of it is read from the file only when it is used.
const LIBRARY: &str = "
    #define PAGES 256
    const unsigned char table[PAGES][4096] = {
    #include \"pages.inc\"
    };
    int total(void) { int sum = 0; for (int i = 0; i < PAGES; i++) sum += table[i][i]; return sum; }
";
/// Loads it, lets go of the file, and uses it when it is told to.
const LOADER: &str = "
    #include <dlfcn.h>
    #include <stdio.h>
    int main(int argc, char **argv) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (argc < 2 || !library) { puts(dlerror()); return 1; }
        int (*total)(void) = (int (*)(void))dlsym(library, \"total\");
        puts(\"loaded\");
        fflush(stdout);
        getchar();
        printf(\"%d\\n\", total());
        fflush(stdout);
        getchar();
        dlclose(library);
        puts(\"closed\");
        fflush(stdout);
        getchar();
        return 0;
    }
";

/// `dlopen` closes the file at once: by passthrough the daemon hears of that while all of it is still mapped.
///
/// Seen to fail, by a stub under the mapping, when a lease that is refused counts as granted.
#[test]
fn a_loaded_library_lives_on_while_its_file_is_to_be_converted() {
    as_both(|user| {
        let modes: &[&[&str]] = if user == As::Root { &[&[], &["--no-passthrough"]] } else { &[&[]] };
        for flags in modes {
            let twin = Twin::with_flags(user, flags);
            let outside = twin.plain();
            let pages = (0..256).map(|i| format!("{{[{i}] = {}}},", i % 251)).collect::<String>();
            for (name, text) in [("pages.inc", pages.as_str()), ("lib.c", LIBRARY), ("loader.c", LOADER)] {
                fs::write(outside.join(name), text).unwrap();
            }
            let made = "cc -shared -fPIC -o liblarge.so lib.c && cc -o loader loader.c -ldl";
            let output = bounded(Command::new("sh").args(["-c", made]).current_dir(&outside));
            assert!(output.status.success(), "{}", crate::common::text(&output));
            let expected: i32 = (0..256).map(|i| i % 251).sum();
            for stub in [false, true] {
                let library = twin.mount.at("liblarge.so");
                fs::copy(outside.join("liblarge.so"), &library).unwrap();
                if stub {
                    twin.settle(&["liblarge.so"]);
                }
                let mut loader = Command::new(outside.join("loader"))
                    .arg(&library)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut said = BufReader::new(loader.stdout.take().unwrap()).lines();
                let go_on = || loader.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
                let mut next = || said.next().and_then(Result::ok).unwrap_or_default();
                assert_eq!(next(), "loaded");
                twin.mount.settle();
                let when = format!("{flags:?}, stub: {stub}");
                assert_eq!(twin.mount.is_stub("liblarge.so"), stub, "it is mapped: {when}");
                go_on();
                assert_eq!(next(), expected.to_string(), "{when}");
                go_on();
                assert_eq!(next(), "closed", "{when}");
                // It is tried again at long intervals; who opens and closes it has it looked at again.
                drop(fs::OpenOptions::new().append(true).open(&library).unwrap());
                wait_for("the conversion of what is not mapped any more", || {
                    twin.mount.settle();
                    twin.mount.is_stub("liblarge.so")
                });
                go_on();
                assert!(loader.wait().unwrap().success(), "{when}");
                fs::remove_file(&library).unwrap();
            }
        }
    });
}
