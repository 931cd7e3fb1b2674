// A tool call of an agent harness: `harness TIMEOUT COMMAND` runs the COMMAND of a model through treekill-run and prints
// the text that the model is given. SIGINT cancels the call, a second one ends it at once.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

var options = []string{"--quiet", "--new-session", "--die-with-parent", "--kill-after", "3s", "--drain-limit", "2s"}

const (
	kept      = 16 * 1024   // bytes that are kept of the beginning of the output, and as many of its end
	listed    = 20          // processes that are named at most
	lastWords = time.Second // how long is waited for output that survivors hold open
)

type process struct {
	Depth int
	Comm  string
	Argv  []string
}

type report struct {
	Outcome       string
	CommandStatus *struct {
		Exited   int
		Signaled string
	} `json:"command_status"`
	TreeAtStop struct{ Processes []process } `json:"tree_at_stop"`
	Leftovers  []process
	Survivors  []process
}

// call runs the command and returns the text for the model. The end of ctx asks the tree to end, a value of harder after
// that kills it. Nothing of the tree is alive when treekill-run has ended, so its pipes end then too: no read needs a
// time limit. Nor is a WaitDelay set, which would kill treekill-run before it has written its report.
func call(ctx context.Context, harder <-chan os.Signal, timeout, command string) string {
	reports, reportEnd, err := os.Pipe()
	if err != nil {
		return fmt.Sprintf("not started: %v\n", err)
	}
	defer reports.Close()
	words := slices.Concat(options, []string{"--timeout", timeout, "--report-fd", "3", "--", "bash", "-c", command})
	cmd := exec.CommandContext(ctx, "treekill-run", words...)
	cmd.ExtraFiles = []*os.File{reportEnd} // the first is descriptor 3
	// By default it is SIGKILL.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout // the same pipe, so that what is printed stays in order
		err = cmd.Start()       // an error too if ctx has ended before
	}
	reportEnd.Close() // while we have it open too, the report does not end
	if err != nil {
		return fmt.Sprintf("not started: %v\n", err)
	}
	isOver := make(chan struct{})
	defer close(isOver)
	go func() {
		for {
			select {
			case <-harder:
				cmd.Process.Signal(syscall.SIGTERM) // nobody else gets it once treekill-run has been waited for
			case <-isOver:
				return
			}
		}
	}()

	var printed output
	isRead := make(chan struct{})
	go func() {
		defer close(isRead)
		io.Copy(&printed, stdout)
	}()
	text, _ := io.ReadAll(reports) // meanwhile: it may be more than the pipe holds
	var result report
	json.Unmarshal(text, &result) // there is none if treekill-run could not do its work, or was killed
	late := make(<-chan time.Time)
	if len(result.Survivors) > 0 {
		late = time.After(lastWords) // only survivors could hold the output open
	}
	select {
	case <-isRead:
	case <-late:
	}
	cmd.Wait() // closes our end of the output
	<-isRead
	return describe(result, cmd.ProcessState, timeout, printed.text())
}

// describe makes the text for the model.
func describe(result report, state *os.ProcessState, timeout, printed string) string {
	var text strings.Builder
	switch status := result.CommandStatus; {
	case result.Outcome == "timed_out":
		fmt.Fprintf(&text, "timed out after %s\n", timeout)
	case result.Outcome == "stopped":
		text.WriteString("cancelled\n")
	case status == nil:
		fmt.Fprintf(&text, "not run: treekill-run ended with %v\n", state)
	case status.Signaled != "":
		fmt.Fprintf(&text, "died of SIG%s\n", status.Signaled)
	default:
		fmt.Fprintf(&text, "exit status %d\n", status.Exited)
	}
	if printed = strings.TrimSuffix(printed, "\n"); printed != "" {
		fmt.Fprintf(&text, "output:\n%s\n", printed)
	} else {
		text.WriteString("no output\n")
	}
	if result.Outcome == "timed_out" || result.Outcome == "stopped" {
		list(&text, "running when it was stopped", result.TreeAtStop.Processes)
	}
	list(&text, "left running, now ended", result.Leftovers)
	list(&text, "could not be ended", result.Survivors)
	return text.String()
}

// list writes a line for each process, below the one that started it.
func list(text *strings.Builder, title string, processes []process) {
	for i, process := range processes {
		if i == 0 {
			fmt.Fprintf(text, "%s:\n", title)
		}
		if i == listed {
			fmt.Fprintf(text, "  and %d more\n", len(processes)-listed)
			break
		}
		words := strings.Fields(strings.Join(process.Argv, " "))
		if len(words) == 0 {
			words = []string{process.Comm}
		}
		fmt.Fprintf(text, "%s%.100s\n", strings.Repeat("  ", process.Depth+1), strings.Join(words, " "))
	}
}

// output is the beginning and the end of what was printed.
type output struct {
	head, tail []byte
	length     int
}

// Write takes all there is, however much: a command whose pipe is full does not go on.
func (o *output) Write(data []byte) (int, error) {
	room := min(kept-len(o.head), len(data))
	o.length += len(data)
	o.head = append(o.head, data[:room]...)
	o.tail = append(o.tail, data[room:]...)
	o.tail = slices.Clone(o.tail[max(0, len(o.tail)-kept):])
	return len(data), nil
}

// text decodes only the whole: what is read ends in the middle of a character at times.
func (o *output) text() string {
	head, tail, between := o.head, o.tail, ""
	if o.length > len(head)+len(tail) {
		for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
			tail = tail[1:]
		}
		last := len(head) - 1
		for last > 0 && !utf8.RuneStart(head[last]) {
			last--
		}
		head = head[:last] // without its last character, of which there may be only half
		between = fmt.Sprintf("\n[%d bytes left out]\n", o.length-len(head)-len(tail))
	}
	return strings.ToValidUTF8(string(head)+between+string(tail), "\ufffd")
}

func main() {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	ctx, cancel := context.WithCancel(context.Background())
	harder := make(chan os.Signal)
	go func() {
		<-interrupts
		cancel()
		for interrupt := range interrupts {
			harder <- interrupt
		}
	}()
	fmt.Print(call(ctx, harder, os.Args[1], os.Args[2]))
}
