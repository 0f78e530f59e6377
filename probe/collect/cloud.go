package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// asked is what Azure is asked. The other fields hold once done is closed.
type asked struct {
	done   chan struct{}
	answer *azure.Answer
	err    error
}

// askAzure begins to ask Azure, if that is wanted.
func (c *Collector) askAzure() {
	client := c.options.Azure
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), azure.Limit)
	c.asked, c.stop = &asked{done: make(chan struct{})}, append(c.stop, cancel)
	own := *client
	own.Identity = cmp.Or(own.Identity, files.AzureIdentity(c.options.HostRoot))
	if own.HTTP == nil {
		own.HTTP = azure.HostClient(c.options.HostRoot)
	}
	c.followers.Go(func() {
		defer close(c.asked.done)
		defer cancel()
		if c.asked.answer, c.asked.err = own.AskNode(ctx); errors.Is(c.asked.err, context.DeadlineExceeded) {
			c.asked.err = fmt.Errorf("no answer within %v: %w", azure.Limit, c.asked.err)
		}
	})
}

// awaitAzure waits for what Azure tells, azure.Limit after Open at most.
func (c *Collector) awaitAzure(ctx context.Context) {
	if c.asked == nil {
		return
	}
	select {
	case <-c.asked.done:
	case <-ctx.Done():
	}
}

// readCloud sets the cloud's network: what files and Azure tell of it.
func (r *reading) readCloud() {
	a, from := r.c.azure, r.c.options.RoutesFiles
	var err error
	if q := r.c.asked; q != nil {
		select {
		case <-q.done:
			if err = q.err; err == nil {
				a.Tables = slices.Clone(a.Tables)
				azure.Merge(&a, &q.answer.Azure)
				from = append(from[:len(from):len(from)], azure.Source)
				if len(q.answer.Unread) > 0 {
					err = errors.New(strings.Join(q.answer.Unread, "; "))
				}
			}
		default:
			err = errors.New("Azure has not answered yet")
		}
	}
	if len(from) == 0 && err == nil {
		return
	}
	a.Node = r.files.Cloud
	r.s.Cluster.Azure = a
	r.report(model.SourceCloud, fmt.Sprintf("%s, %s, %s, %s, %s, %s from %s", model.Quantity(len(a.Tables), "route table"),
		model.Quantity(len(a.Subnets), "subnet"), model.Plural(len(a.Effective), "list of effective routes", "lists of effective routes"),
		model.Quantity(len(a.NICs), "NIC"), model.Quantity(len(a.Groups), "security group"),
		model.Plural(len(a.Rules), "list of effective rules", "lists of effective rules"), strings.Join(from, ", ")), len(from) > 0, err)
}
